import {
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import type { AgentConfinement } from "../../src/sandbox/confinement.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createSpares } from "../../src/tools/process/confine-command.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { untilDead } from "../tools/processes.ts";

const secret = "TOPSECRET";
const rules = { read: { "*": "allow", "*.env": "deny", "secrets/*": "deny" }, edit: { "*": "allow" } } as const;
const replicaId = `spares-test-${process.pid}`;
const supervisor = createSupervisor({ replicaId, leaseMs: 15_000 });
const pipes = createPipes();
/** Not in a temporary directory, since commands see other ones. */
const data = realpathSync(mkdtempSync(join(homedir(), ".toolgate-test-")));
const own = join(data, "token");
writeFileSync(own, secret);
const agents = new Map<string, AgentConfinement>();
const sandbox = await openSandbox({
  wanted: { profile: "workspace-write", network: "proxy" },
  ...{ agents, writable: [], pipes, hidden: [{ path: own, kind: "file" }], readable: [data] },
  ...{ temporary: join(data, "temporary"), mountPoints: join(data, "mounts") },
});
const resting = join(data, "mounts/resting");
const isOpen = async () => true;
let spares: ReturnType<typeof createSpares>;
let site: TestWorkspace;

beforeEach(async () => {
  spares = createSpares({ sandbox, supervisor, pipes, isOpen });
  site = await openTestWorkspace({ "a.env": secret, "conf/b.env": secret, "secrets/key": secret, "public/file": "" });
  site.judge = judgeBy(rules);
});
afterEach(async () => {
  await spares.close();
  await site.remove();
});
afterAll(async () => {
  sandbox.close();
  await supervisor.close();
  await pipes.close();
  rmSync(data, { recursive: true });
});

const place = (name: string) => join(site.directory, name);
const bash = () => createBash({ supervisor, sandbox, pipes, spares });
/** Prints the start of the first process of a sandbox; the kernel uses the numbers of namespaces again. */
const whereItRuns = "cut -d' ' -f22 /proc/1/stat";

/** Runs a command; returns what it printed, and the sandbox that it ran in. */
async function run(command: string, options: RunOptions & { edits?: string[]; timeout?: number } = {}) {
  const { edits = [], timeout, ...others } = options;
  const input = { command: `${whereItRuns}\n${command}`, edits, ...(timeout !== undefined && { timeout }) };
  const { written, metadata } = await callTool(site, bash(), input, others);
  const [ran, ...lines] = written.split("\n");
  return { ran, printed: lines.join("\n"), metadata };
}

/** The sandboxes that wait at a replica, or at any, by their first process. */
function waitingNow(session = "ses_test", mark = `TOOLGATE_REPLICA=${replicaId}`): Map<number, string | undefined> {
  const found = readdirSync("/proc").flatMap((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
      const isOurs =
        words.some((word) => word.startsWith(mark)) &&
        words.some((word) => word.startsWith(`TOOLGATE_CALL=${session}`) && word.endsWith("/next"));
      const isFirst = /^NSpid:.*\t1$/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
      return isOurs && isFirst
        ? [[Number(pid), readFileSync(`/proc/${pid}/stat`, "utf8").split(" ")[21]] as const]
        : [];
    } catch {
      return [];
    }
  });
  return new Map(found);
}

/** Runs a first command, and waits until the sandbox of the next one waits; returns it. */
async function waiting(): Promise<string | undefined> {
  await run("true");
  const placeholders = () => (existsSync(resting) ? readdirSync(resting).length : 0);
  await vi.waitUntil(() => placeholders() > 0 && waitingNow().size > 0, { timeout: 60_000, interval: 10 });
  return [...waitingNow().values()].at(-1);
}

/**
 * Runs a command in the sandbox that waits, and changes something before. Another program of this machine may mount something
 * meanwhile, after which no waiting sandbox fits: then it is tried again.
 */
async function runWaited(command: string, options: Parameters<typeof run>[1] = {}, change = () => {}, undo = () => {}) {
  for (let tries = 1; ; tries += 1) {
    undo();
    const waited = await waiting();
    change();
    const result = await run(command, options);
    if (result.ran === waited) return result;
    expect(tries, "new sandboxes in a row, although one waited").toBeLessThan(5);
  }
}

describe("the next command of a session", () => {
  test("runs in the sandbox that waited, as it would in a new one", async () => {
    const command = `printf '%s|' "$0" "$#" 'it'"'"'s'; pwd; cat; env | grep -v TOOLGATE_CALL | sort; ulimit -a; exit 7`;
    const first = await run(command);
    const second = await runWaited(command);
    expect(second.ran).not.toBe(first.ran);
    expect({ ...second, ran: "" }).toEqual({ ...first, ran: "" });
    expect(second.metadata).toMatchObject({ exit: 7 });
  });

  test("gets every character of its line", async () => {
    const text = Array.from({ length: 0x2ff }, (_, code) => String.fromCodePoint(code + 1)).join("");
    const { printed } = await runWaited(`cat <<'toolgate-end'\n${text}🦊\ntoolgate-end`);
    expect(printed).toBe(`${text}🦊\n`);
  });

  test("ends at its timeout, with all that it started", async () => {
    const { ran, metadata } = await runWaited("setsid sleep 1000 & sleep 1000", { timeout: 200 });
    expect(metadata).toMatchObject({ exit: null });
    await vi.waitUntil(() => [...waitingNow().values()].every((one) => one !== ran), { timeout: 60_000 });
  });

  test("has its own variables, and can read none of an earlier command", async () => {
    const withToken = () => {
      site.environment = { TOKEN: secret };
    };
    const without = () => {
      site.environment = {};
    };
    expect(await runWaited("echo $TOKEN", {}, withToken, withToken)).toMatchObject({ printed: `${secret}\n` });
    const { printed } = await runWaited("cat /proc/*/environ; env", {}, without, withToken);
    expect(printed).not.toContain(secret);
  });

  test("has no file that rules hide, and makes no path that is protected", async () => {
    const { printed } = await runWaited(
      "cat a.env conf/b.env secrets/key; mkdir .vscode; echo x > .vscode/tasks.json; true",
    );
    expect(printed).not.toContain(secret);
    expect(readdirSync(site.directory).sort()).toEqual(["a.env", "conf", "public", "secrets"]);
  });
});

test("while a sandbox waits, the workspace holds none of its placeholders", async () => {
  await waiting();
  expect(readdirSync(site.directory).sort()).toEqual(["a.env", "conf", "public", "secrets"]);
  expect(readdirSync(resting).length).toBeGreaterThan(0);
});

/** Changes while a sandbox waits, and the options of the next command. */
const changes: Record<string, (() => void) | { change?: () => void; options: Parameters<typeof run>[1] }> = {
  "a file that rules hide was made": () => writeFileSync(place("public/new.env"), secret),
  "a hidden file was saved by renaming": () => {
    writeFileSync(place("saved"), secret);
    renameSync(place("saved"), place("a.env"));
  },
  "the directory of a hidden file was renamed": () => renameSync(place("conf"), place("conf2")),
  "a hidden file of the service was saved by renaming": () => {
    writeFileSync(join(data, "saved"), secret);
    renameSync(join(data, "saved"), own);
  },
  "the mount on a hidden file of the service is gone, and the file is the same": () => {
    linkSync(own, join(data, "kept"));
    rmSync(own);
    renameSync(join(data, "kept"), own);
  },
  "rules changed": () => {
    site.judge = judgeBy({ ...rules, read: { ...rules.read, "public/*": "deny" } });
  },
  "a protected path was made": () => mkdirSync(place(".vscode")),
  "the call may edit a protected path": { options: { edits: [".vscode"] } },
  "the call may read a hidden file": {
    get options() {
      return { files: { read: [place("a.env")], edit: [] } };
    },
  },
};

test.each(Object.keys(changes))("the next command has a new sandbox if %s", async (name) => {
  const waited = await waiting();
  const how = changes[name] ?? {};
  const { change, options = {} } =
    typeof how === "function" ? { change: how } : (how as { change?: () => void; options: RunOptions });
  change?.();
  const { ran, printed } = await run(`cat a.env conf*/* public/* secrets/* ${own}; true`, options);
  expect(ran).not.toBe(waited);
  expect(printed.split(secret).length - 1).toBe(name === "the call may read a hidden file" ? 1 : 0);
  await vi.waitUntil(() => [...waitingNow().values()].every((one) => one !== waited), { timeout: 60_000 });
});

test("a sandbox whose process was killed is not used, and leaves nothing", async () => {
  const waited = await waiting();
  for (const pid of waitingNow().keys()) process.kill(pid, "SIGKILL");
  const { ran, printed } = await run("echo ran");
  expect(ran).not.toBe(waited);
  expect(printed).toBe("ran\n");
});

test("a placeholder stays if a file is put into it while a command runs", async () => {
  await waiting();
  const running = run("touch public/started; while [ ! -e public/go ]; do sleep 0.05; done");
  await vi.waitUntil(() => existsSync(place("public/started")), { timeout: 60_000 });
  writeFileSync(place(".vscode/settings.json"), "{}");
  writeFileSync(place("public/go"), "");
  await running;
  expect(readFileSync(place(".vscode/settings.json"), "utf8")).toBe("{}");
});

test("sandboxes end after a time, and with the service", async () => {
  await spares.close();
  spares = createSpares({ sandbox, supervisor, pipes, isOpen }, 300);
  onTestFinished(() => spares.close());
  await waiting();
  const pids = [...waitingNow().keys()];
  await Promise.all(pids.map(untilDead));
  await vi.waitUntil(() => readdirSync(resting).length === 0, { timeout: 60_000 });
  spares = createSpares({ sandbox, supervisor, pipes, isOpen });
  await waiting();
  const last = [...waitingNow().keys()];
  await spares.close();
  await Promise.all(last.map(untilDead));
  expect(readdirSync(resting)).toEqual([]);
});

test("a sandbox does not outlive a store that fails", async () => {
  await spares.close();
  const health = { isFailing: false };
  const read = async () => {
    if (health.isFailing) throw new Error("the store is not available");
    return true;
  };
  spares = createSpares({ sandbox, supervisor, pipes, isOpen: read });
  await waiting();
  const pids = [...waitingNow().keys()];
  health.isFailing = true;
  await Promise.all(pids.map(untilDead));
});

test("a sandbox ends with its session, which another replica closes", async () => {
  const redis = await startRedis();
  onTestFinished(redis.stop);
  const settings = `store = "${redis.url}"\n`;
  const [one, other] = [await startService({ settings }), await startService({ settings })];
  const agent = connect(one, "caller");
  const sessionId = await agent.newSession();
  await agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "true" } });
  const now = () => [...waitingNow(sessionId, "TOOLGATE_REPLICA=").keys()];
  await vi.waitUntil(() => now().length > 0, { timeout: 60_000, interval: 10 });
  const pids = now();
  await connect(other, "caller").sessions.closeSession({ sessionId });
  await Promise.all(pids.map(untilDead));
});

test("a command or an environment that a shell could take for something else has a new sandbox", async () => {
  for (const [command, env] of [
    ["'".repeat(1_200), {}],
    ["true", { BASH_ENV: "public/file" }],
    ["true", { "NO NAME": "" }],
    ["true", { lines: "touch public/injected" }],
  ] as const) {
    await waiting();
    expect(spares.take("ses_test", ["/bin/bash", "-c", command], env)).toBeUndefined();
    await vi.waitUntil(() => waitingNow().size === 0, { timeout: 60_000 });
  }
  await waiting();
  const taken = spares.take("ses_test", ["/bin/bash", "-c", "true"], {});
  expect(taken, "control").toBeDefined();
  await taken?.end();
});

test("only for a few sessions a sandbox waits", async () => {
  const files = { rules: judgeBy(rules).fileRules(), read: [], edit: [] };
  const here = { agent: "build", cwd: site.directory, workspace: site.directory, directories: [], files };
  for (let i = 0; i < 6; i += 1) spares.prepare(`ses_many${i}`, here, {});
  await vi.waitUntil(() => waitingNow("ses_many").size >= 4, { timeout: 60_000 });
  spares.prepare("ses_many6", here, {});
  await run("true");
  expect(waitingNow("ses_many").size).toBe(4);
  expect(waitingNow().size).toBe(0);
});
