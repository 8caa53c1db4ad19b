import { mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { homedir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, describe, expect, test } from "vitest";
import type { SandboxConfinement, SandboxProfile } from "../../src/sandbox/confinement.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, openTestWorkspace, planCall, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { processesNamed, untilDead } from "./processes.ts";

const supervisor = createSupervisor({ replicaId: `sandbox-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
let site: TestWorkspace;
/** Not in a temporary directory, since commands see other ones. */
let outside: string;
let secrets: string;
beforeEach(async () => {
  site = await openTestWorkspace();
  outside = await realpath(await mkdtemp(join(homedir(), ".toolgate-test-")));
  secrets = join(outside, "service");
  await mkdir(secrets);
  await writeFile(join(secrets, "token"), "secret");
  await writeFile(join(outside, "toolgate.toml"), "secret");
});
afterEach(async () => {
  await site.remove();
  await rm(outside, { recursive: true });
});
afterAll(async () => {
  await supervisor.close();
  await pipes.close();
});

async function run(
  confinement: Partial<SandboxConfinement>,
  command: string,
  options: RunOptions & {
    writable?: string[];
    agents?: ReadonlyMap<string, SandboxConfinement>;
    timeout?: number;
  } = {},
) {
  const wanted = { profile: "workspace-write", network: "open", ...confinement } as const;
  const { writable = [], agents = new Map(), timeout } = options;
  const hidden = [
    { path: secrets, kind: "directory" },
    { path: join(outside, "toolgate.toml"), kind: "file" },
  ] as const;
  const sandbox = await openSandbox({ wanted, agents, writable, hidden });
  expect(sandbox.problem).toBeUndefined();
  const input = timeout === undefined ? { command } : { command, timeout };
  return await callTool(site, createBash({ supervisor, sandbox, pipes }), input, options);
}

const written = async (...args: Parameters<typeof run>) => (await run(...args)).written;
/** All of a command without a network. */
const layers = ["disk", "processes", "network", "files", "system_calls", "limits"];
const profiles: SandboxProfile[] = ["workspace-write", "read-only"];

describe("workspace-write", () => {
  test("lets a command write only in the workspace and its temporary directory", async () => {
    expect(await written({}, "echo in > inside; echo tmp > /tmp/file; cat /tmp/file")).toBe("tmp\n");
    expect(await readFile(join(site.directory, "inside"), "utf8")).toBe("in\n");
    expect(await written({}, `touch ${outside}/file /usr/file ~/file; true`)).toMatch(
      /^(touch: .*Read-only file system\n){3}$/,
    );
    expect(await readdir(outside)).not.toContain("file");
  });

  test("lets a command write where the approver or the configuration allows it", async () => {
    await mkdir(join(outside, "configured"));
    await mkdir(join(outside, "approved"));
    const options = { writable: [join(outside, "configured")], outside: [join(outside, "approved")] };
    await run({}, `touch ${outside}/configured/a ${outside}/approved/b ${outside}/c`, options);
    expect(await readdir(join(outside, "configured"))).toEqual(["a"]);
    expect(await readdir(join(outside, "approved"))).toEqual(["b"]);
    expect(await readdir(outside)).not.toContain("c");
  });

  test("does not follow a link out of the workspace", async () => {
    await symlink(outside, join(site.directory, "link"));
    expect(await written({}, "touch link/file")).toContain("Read-only file system");
  });

  test("protects files that the service loads from the workspace", async () => {
    await mkdir(join(site.directory, ".opencode"));
    await run({}, "touch .opencode/config.toml; mv .opencode elsewhere");
    expect(await readdir(join(site.directory, ".opencode"))).toEqual([]);
  });
});

describe("read-only", () => {
  test("lets a command write nothing that lasts, even in an allowed directory", async () => {
    await writeFile(join(site.directory, "file"), "old");
    await mkdir(join(outside, "approved"));
    const said = await written(
      { profile: "read-only" },
      `cat file; echo new > file; touch ${outside}/approved/a; echo kept > $(mktemp) && echo temporary`,
      { outside: [join(outside, "approved")] },
    );
    expect(said).toMatch(/^old.*Read-only.*\ntouch: .*Read-only file system\ntemporary\n$/);
    expect(await readFile(join(site.directory, "file"), "utf8")).toBe("old");
  });
});

describe.each(profiles)("%s", (profile) => {
  test("hides the service's directory and files, even inside an allowed directory", async () => {
    const said = await written({ profile }, `ls -A ${secrets}; cat ${secrets}/token ${outside}/toolgate.toml; true`, {
      outside: [outside],
    });
    expect(said).not.toContain("secret\n");
    expect(said).toContain("No such file or directory");
  });

  test("hides other processes and their environment", async () => {
    const said = await written(
      { profile },
      `cat /proc/${process.pid}/environ; kill -0 ${process.pid}; ls -d /proc/[0-9]*`,
    );
    expect(said).toContain(`/proc/${process.pid}/environ: No such file`);
    expect(said).toContain("No such process");
  });

  test("cannot be undone by mounting", async () => {
    const said = await written({ profile }, `umount ${secrets}; mount -o remount,rw /; touch /usr/file; true`);
    expect(said).toMatch(/Read-only file system\n$/);
    expect(await written({ profile }, `cat ${secrets}/token; true`)).toContain("No such file");
  });

  test("is reported in the result", async () => {
    expect((await run({ profile, network: "none" }, "true")).metadata?.sandbox).toEqual({
      profile,
      network: "none",
      layers,
    });
  });
});

test("the network can be disabled", async () => {
  const server = createServer((_, response) => response.end("reached"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  const port = typeof address === "object" ? address?.port : undefined;
  const ask = `exec 3<>/dev/tcp/127.0.0.1/${port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3`;
  try {
    expect(await written({ network: "open" }, ask)).toContain("reached");
    expect(await written({ network: "none" }, ask)).not.toContain("reached");
  } finally {
    server.close();
  }
});

test("an agent can have a separate profile", async () => {
  const agents = new Map([["build", { profile: "read-only", network: "open" } as const]]);
  expect(await written({}, "touch file", { agents })).toContain("Read-only file system");
  expect((await run({}, "true", { agents })).metadata?.sandbox).toEqual({
    profile: "read-only",
    network: "open",
    layers: layers.filter((layer) => layer !== "network"),
  });
});

test("output and exit code are as without a sandbox", async () => {
  const { written, metadata } = await run({}, "echo a; echo b >&2; echo c > /dev/stdout; exit 3");
  expect(written).toBe("a\nb\nc\n");
  expect(metadata).toMatchObject({ exit: 3, signal: null });
});

test("all processes of a command end with it, also those that left group and session and ignore signals", async () => {
  const mark = `left-${process.pid}-${Date.now()}`;
  await writeFile(join(site.directory, "left"), "trap '' TERM HUP; until [ -e go ]; do sleep 0.02; done; touch done");
  const { written } = await run(
    {},
    `(exec -a ${mark} bash left) & setsid bash -c "exec -a ${mark} bash left" & echo started`,
  );
  expect(written).toBe("started\n");
  // What is left would write now.
  await writeFile(join(site.directory, "go"), "");
  for (const pid of await processesNamed(mark)) await untilDead(pid);
  expect(await processesNamed(mark)).toEqual([]);
  expect(await readdir(site.directory)).toEqual(["go", "left"]);
});

test("at the timeout all processes end, even those that left group and session and ignore SIGTERM", async () => {
  const mark = `sandbox-${process.pid}-${Date.now()}`;
  const command = `(trap '' TERM; exec -a ${mark} sleep 1000) & setsid bash -c "trap '' TERM; exec -a ${mark} sleep 1000" & echo started; wait`;
  const pids: number[] = [];
  const { written, note } = await run({}, command, {
    timeout: 1_000,
    async onOutput() {
      pids.push(...(await processesNamed(mark)));
    },
  });
  expect(written).toBe("started\n");
  expect(note).toContain("exceeding timeout");
  for (const pid of pids) await untilDead(pid);
  expect(await processesNamed(mark)).toEqual([]);
});

test("if it cannot start, the reason names the next step, and results report that it is off", async () => {
  const path = process.env.PATH;
  process.env.PATH = site.directory;
  const wanted = { profile: "workspace-write", network: "none" } as const;
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] }).finally(() => {
    process.env.PATH = path;
  });
  expect(sandbox).toMatchObject({
    state: { profile: "off", network: "open" },
    problem: "bubblewrap is not installed: apt-get install bubblewrap, then start the service again",
  });
  const bash = createBash({ supervisor, sandbox, pipes });
  const { metadata } = await callTool(site, bash, { command: "true" });
  expect(metadata?.sandbox).toEqual({ profile: "off", network: "open", layers: [], problem: sandbox.problem });
  const { asks } = (await planCall(site, bash, { command: "true" })).plan;
  expect(asks).toMatchObject([{ alwaysAsk: `runs without a sandbox, since ${sandbox.problem}` }]);
});

test("a command of an agent whose profile is off does not ask because of that", async () => {
  const wanted = { profile: "off", network: "open" } as const;
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
  const { asks } = (await planCall(site, createBash({ supervisor, sandbox, pipes }), { command: "true" })).plan;
  expect(asks[0]).not.toHaveProperty("alwaysAsk");
});
