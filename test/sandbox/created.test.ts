import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createQuarantine } from "../../src/tools/process/settle-created.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { emptyDirectory } from "../empty-directory.ts";

const supervisor = createSupervisor({ replicaId: `created-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const data = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-test-")));
const quarantined = join(data, "quarantine");
const wanted = { profile: "workspace-write", network: "none" } as const;
const sandbox = await openSandbox({
  ...{ wanted, agents: new Map(), writable: [], hidden: [] },
  mountPoints: join(data, "mounts"),
});
const bash = createBash({ supervisor, sandbox, pipes, quarantine: createQuarantine(quarantined) });
const rules = { edit: { "*": "ask", "locked/*": "deny", "*.lock": "deny" } } as const;
let site: TestWorkspace;

beforeAll(async () => {
  site = await openTestWorkspace();
  site.judge = judgeBy(rules);
});
beforeEach(() => {
  emptyDirectory(site.directory);
  writeFileSync(join(site.directory, "a.txt"), "a\n");
  rmSync(quarantined, { recursive: true, force: true });
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
  rmSync(data, { recursive: true });
});

const run = (command: string, options: RunOptions = {}, edits: string[] = []) =>
  callTool(site, bash, { command, edits }, options);
const refuse = () => {
  throw new Error("refused");
};
const place = (name: string) => join(site.directory, name);
const contentOf = (name: string) => readFileSync(place(name), "utf8");
/** The files in the quarantine by their path in the workspace. */
const taken = () =>
  existsSync(quarantined)
    ? readdirSync(quarantined, { recursive: true, encoding: "utf8", withFileTypes: true })
        .filter((entry) => !entry.isDirectory() && entry.name !== "about.json")
        .map(({ parentPath, name }) => join(parentPath, name).replace(/^.*?\/files\//, ""))
        .sort()
    : [];
const git = (...args: string[]) => execFileSync("git", ["-C", site.directory, ...args], { encoding: "utf8" });

describe("a protected or denied path that does not exist", () => {
  const making = "mkdir -p .vscode; echo X > .vscode/tasks.json; echo X > .roo; mkdir locked; echo X > locked/x";
  test("cannot be made directly below an existing directory, and the host is clean afterwards", async () => {
    const { note } = await run(making);
    expect(readdirSync(site.directory)).toEqual(["a.txt"]);
    expect(note).toContain(".roo does not exist, and this command may not make it");
    expect(note).toContain('Call again with edits: [".roo"], which asks.');
    expect(taken()).toEqual([]);
    spawnSync("bash", ["-c", making], { cwd: site.directory });
    expect(readdirSync(site.directory), "control: outside the sandbox").toEqual([
      ...[".roo", ".vscode", "a.txt", "locked"],
    ]);
  });

  test("can be made by the call that named it", async () => {
    await run("mkdir .vscode; echo X > .vscode/tasks.json; echo X > .roo", {}, [".vscode"]);
    expect(readdirSync(site.directory)).toEqual([".vscode", "a.txt"]);
    expect(contentOf(".vscode/tasks.json")).toBe("X\n");
  });

  test("is covered as long as any command needs its placeholder, and left if a person puts something into it", async () => {
    const long = run("touch started; until [ -e go ]; do sleep 0.05; done; mkdir .idea/x; echo X > .roo");
    await vi.waitUntil(() => existsSync(place("started")), { timeout: 30_000 });
    expect(existsSync(place(".roo")), "control: the placeholder is on the host").toBe(true);
    await run("echo X > .roo");
    expect(readdirSync(place(".roo"))).toEqual([]);
    writeFileSync(place(".vscode/settings.json"), "{}");
    writeFileSync(place("go"), "");
    expect((await long).written).toMatch(/\.idea\/x.: Read-only[\s\S]*\.roo: Is a directory/);
    expect(readdirSync(site.directory)).toEqual([".vscode", "a.txt", "go", "started"]);
    expect(contentOf(".vscode/settings.json")).toBe("{}");
  });

  test("does not hinder programs that set up an empty directory", async () => {
    rmSync(place("a.txt"));
    const { metadata } = await run('[ -z "$(ls -A)" ] && echo set > up');
    expect([metadata?.exit, contentOf("up")]).toEqual([0, "set\n"]);
  });
});

describe("a nested protected path that a command makes", () => {
  const command = "mkdir -p pkg/.vscode; echo X > pkg/.vscode/tasks.json; echo ok > pkg/ok";
  test("is moved back if an approver allows it, who sees its content", async () => {
    const { asked, note, metadata } = await run(command);
    expect(asked).toMatchObject([
      {
        permission: "edit",
        patterns: ["pkg/.vscode"],
        refusable: true,
        alwaysAsk: expect.stringContaining("in quarantine"),
      },
    ]);
    expect([contentOf("pkg/.vscode/tasks.json"), contentOf("pkg/ok"), taken()]).toEqual(["X\n", "ok\n", []]);
    expect(note).toContain(
      "pkg/.vscode was made by this command, which may not make it: pkg/.vscode is a setting of an editor, which may run code. An approver allowed it, and it is in its place again.",
    );
    expect(metadata?.sandbox).toMatchObject({ created: [{ path: "pkg/.vscode", outcome: "restored" }] });
  });

  test("stays in the quarantine if it is refused, and the result names it", async () => {
    const { note, metadata } = await run(command, { onAsk: refuse });
    expect([existsSync(place("pkg/.vscode")), contentOf("pkg/ok")]).toEqual([false, "ok\n"]);
    expect(taken()).toEqual(["pkg/.vscode/tasks.json"]);
    expect(note).toContain("No approver allowed it. It is in quarantine (");
    expect(metadata?.sandbox).toMatchObject({ created: [{ path: "pkg/.vscode", outcome: "refused" }] });
    const [, directory = ""] = /in quarantine \((.*?)\)/.exec(note ?? "") ?? [];
    expect(readFileSync(join(directory, "tasks.json"), "utf8")).toBe("X\n");
  });

  test("is not asked about if a command made more than 20 of it", async () => {
    const make = (count: number) =>
      `for i in $(seq ${count}); do mkdir -p pkg$i/.vscode && echo X > pkg$i/.vscode/tasks.json; done`;
    expect((await run(make(20), { onAsk: refuse })).asked).toMatchObject([{ patterns: { length: 20 } }]);
    const { asked, note } = await run(make(21));
    expect(asked).toEqual([]);
    expect(taken()).toHaveLength(41);
    expect(note).toContain("more than 20, so no approver was asked");
  });

  test("is taken with a directory whose name is not UTF-8, and moved back under the name that the approver saw", async () => {
    const undecodable = `d=$(printf 'd\\377'); mkdir "$d"; echo X > "$d/.bashrc"`;
    const { note, metadata } = await run(undecodable, { onAsk: refuse });
    expect([readdirSync(site.directory), taken()]).toEqual([["a.txt"], ["d\uFFFD/.bashrc"]]);
    expect(note).toContain("its name is not UTF-8");
    expect(metadata?.sandbox).toMatchObject({ created: [{ outcome: "refused" }] });
    // Nothing of it is left that would have the next command ask.
    expect((await run("echo next")).asked).toEqual([]);

    expect((await run(undecodable)).asked).toMatchObject([{ permission: "edit", patterns: ["d\uFFFD"] }]);
    expect(contentOf("d\uFFFD/.bashrc")).toBe("X\n");
  });

  test("is moved back without set-ID bits", async () => {
    const path = place("pkg/.vscode");
    mkdirSync(path, { recursive: true });
    writeFileSync(join(path, "run"), "");
    chmodSync(join(path, "run"), 0o6755);
    const quarantine = createQuarantine(quarantined);
    const source = { sessionId: "ses_1", callId: "c1", workspace: site.directory };
    const [moved] = await quarantine.take([{ path, isDirectory: true, reason: "the test" }], source);
    expect(moved && (await quarantine.putBack(moved))).toBeUndefined();
    expect(statSync(join(path, "run")).mode & 0o7777).toBe(0o755);
  });

  test("is moved to another disk whole, also where links replace its directories meanwhile, and nothing else is", async () => {
    const disk = mkdtempSync("/dev/shm/toolgate-quarantine-");
    const canary = mkdtempSync(join(tmpdir(), "toolgate-canary-"));
    onTestFinished(() => {
      for (const path of [disk, canary]) rmSync(path, { recursive: true });
    });
    expect(statSync(disk).dev).not.toBe(statSync(site.directory).dev);
    const quarantine = createQuarantine(disk);
    const source = { sessionId: "ses_1", callId: "c1", workspace: site.directory };
    const files = Array.from({ length: 200 }, (_, n) => `f${n}`);
    for (const name of files) writeFileSync(join(canary, name), "CANARY");
    const path = place("pkg/.husky");
    const make = () => {
      mkdirSync(join(path, "below"), { recursive: true });
      for (const name of files) writeFileSync(join(path, "below", name), "mine");
    };
    make();
    symlinkSync("../../a.txt", join(path, "link"));
    const [whole] = await quarantine.take([{ path, isDirectory: true, reason: "the test" }], source);
    expect(existsSync(path)).toBe(false);
    expect(readlinkSync(join(whole?.place ?? "", "link"))).toBe("../../a.txt");
    expect(readFileSync(join(whole?.place ?? "", "below/f199"), "utf8")).toBe("mine");
    expect(whole && (await quarantine.putBack(whole))).toBeUndefined();
    expect(readFileSync(join(path, "below/f0"), "utf8")).toBe("mine");

    const swap = `cd ${path} && while :; do mv -T below b && ln -s ${canary} below; rm below; mv -T b below; done`;
    for (let n = 0; n < 20; n += 1) {
      rmSync(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 });
      make();
      const swapping = spawn("/bin/sh", ["-c", swap], { stdio: "ignore", detached: true });
      await delay(n);
      await quarantine.take([{ path, isDirectory: true, reason: "the test" }], source);
      process.kill(-(swapping.pid ?? 0), "SIGKILL");
      await once(swapping, "exit");
    }
    expect(readdirSync(canary).toSorted()).toEqual(files.toSorted());
    expect(execFileSync("sh", ["-c", `grep -rl CANARY ${disk} || true`]).toString()).toBe("");
  });

  test("is not moved back over something that is there by then", async () => {
    const onAsk = () => writeFileSync(place("pkg/.vscode"), "other");
    const { note } = await run(command, { onAsk });
    expect([contentOf("pkg/.vscode"), taken()]).toEqual(["other", ["pkg/.vscode/tasks.json"]]);
    expect(note).toContain("cannot be moved back");
  });

  test("is not asked about if rules deny it", async () => {
    const { asked, note } = await run("mkdir new; echo X > new/x.lock");
    expect([asked, existsSync(place("new/x.lock")), taken()]).toEqual([[], false, ["new/x.lock"]]);
    expect(note).toContain("Rules deny it.");
  });

  test("is also taken as a link, after a cancelled call, and through a link to a directory", async () => {
    await run("mkdir p; ln -s ../a.txt p/.mcp.json", { onAsk: refuse });
    expect(taken()).toEqual(["p/.mcp.json"]);
    const cancel = new AbortController();
    const onOutput = () => cancel.abort(new Error("cancelled"));
    const cancelled = run("mkdir q; echo X > q/.mcp.json; echo made; sleep 60", { signal: cancel.signal, onOutput });
    await expect(cancelled).rejects.toThrow("cancelled");
    expect(taken()).toEqual(["p/.mcp.json", "q/.mcp.json"]);
    mkdirSync(place("real"));
    symlinkSync("real", place("link"));
    await run("echo X > link/.mcp.json", { onAsk: refuse });
    expect(taken()).toEqual(["p/.mcp.json", "q/.mcp.json", "real/.mcp.json"]);
  });

  test("is left alone if it came with its directory, or if another call was allowed to make it", async () => {
    mkdirSync(place("old/.husky"), { recursive: true });
    const { asked } = await run("mv old new");
    expect([asked, readdirSync(place("new"))]).toEqual([[], [".husky"]]);
    const long = run("touch started; until [ -e go ]; do sleep 0.05; done", { onAsk: refuse });
    await vi.waitUntil(() => existsSync(place("started")), { timeout: 30_000 });
    await run("mkdir -p x/.vscode; touch go", {}, ["x/.vscode"]);
    await long;
    expect([existsSync(place("x/.vscode")), taken()]).toEqual([true, []]);
  });
});

describe("a repository that a command makes", () => {
  test("is left alone if git takes no commands from it", async () => {
    git("init", "-q");
    git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "first");
    const { asked, metadata } = await run(
      "git init -q sub && git clone -q . copy 2>/dev/null; git worktree add -q tree && git -C tree status && git -C copy log",
    );
    expect([asked, metadata?.exit, taken()]).toEqual([[], 0, []]);
  });

  test("loses its settings and hooks if they run commands, until an approver allows them", async () => {
    const settings =
      "git init -q sub; git -C sub config core.fsmonitor 'touch pwned'; echo X > sub/.git/hooks/pre-commit";
    await run(settings, { onAsk: refuse });
    expect(taken()).toContain("sub/.git/config");
    expect(taken()).toContain("sub/.git/hooks/pre-commit");
    expect(existsSync(place("sub/.git/config"))).toBe(false);
    git("init", "-q");
    await run("mkdir evil; git init -q --bare evil; echo ../evil > .git/commondir", { onAsk: refuse });
    expect(existsSync(place(".git/commondir"))).toBe(false);
  });
});

/** Makes files with names that rules deny to read, and removes them a moment later; each name once. */
const flips = `
trap 'rm -rf $i-*; exit' TERM
while :; do
  i=$((i + 1)); mkdir $i-secret; echo S > $i-secret/s; for j in {1..9}; do echo S > $i-$j.env; done
  sleep 0.01; rm -rf $i-*
done`;

test("files that vanish while commands start leave nothing on the host", async () => {
  site.judge = judgeBy({ read: { "*.env": "deny", "*-secret/*": "deny" } });
  const flipper = spawn("bash", ["-c", flips], { cwd: site.directory, stdio: "ignore" });
  onTestFinished(() => void flipper.kill());
  for (let i = 0; i < 40; i++) {
    // While so many files come and go it may not be known what to hide; then the command does not run.
    const ended = await run("true").catch((cause: Error) => {
      expect(cause.message).toContain("The command was not run");
      return undefined;
    });
    if (ended === undefined) continue;
    const { written, metadata } = ended;
    // bubblewrap itself may fail if a path changes while it mounts over it.
    if (metadata?.exit !== 0) expect(written).toMatch(/^(bwrap|toolgate): /);
  }
  flipper.kill();
  await once(flipper, "exit");
  site.judge = judgeBy(rules);
  expect(readdirSync(site.directory)).toEqual(["a.txt"]);
}, 120_000);
