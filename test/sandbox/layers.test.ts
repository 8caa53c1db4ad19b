import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { startSandbox } from "../../src/compose/built-in-tools.ts";
import type { Config } from "../../src/config/config.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const supervisor = createSupervisor({ replicaId: `layers-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const wanted = { profile: "workspace-write", network: "proxy" } as const;
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
  site.judge = judgeBy({});
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
});

/** Puts a program before the real one for the rest of the test: a script that refuses an option, or everything. */
function breakProgram(name: string, refused?: string): void {
  const refuse = `{ echo "${name}: broken by the test" >&2; exit 1; }`;
  replaceProgram(name, refused === undefined ? refuse : `for word; do [ "$word" = ${refused} ] && ${refuse}; done`);
}

/** Puts a program before the real one for the rest of the test: lines of bash that change the arguments. */
function replaceProgram(name: string, lines: string): void {
  const real = process.env.PATH ?? "";
  const path = real
    .split(delimiter)
    .map((directory) => join(directory, name))
    .find(existsSync);
  const directory = mkdtempSync(join(tmpdir(), "toolgate-broken-"));
  writeFileSync(join(directory, name), `#!/bin/bash\n${lines}\nexec ${path} "$@"\n`);
  chmodSync(join(directory, name), 0o755);
  process.env.PATH = `${directory}${delimiter}${real}`;
  onTestFinished(() => {
    process.env.PATH = real;
    rmSync(directory, { recursive: true });
  });
}

async function open(requireAll = false) {
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], requireAll });
  onTestFinished(sandbox.close);
  return { sandbox, bash: createBash({ supervisor, pipes, sandbox }) };
}

const whole = ["disk", "processes", "files", "network", "system_calls", "limits"];

describe("if nothing is broken", () => {
  test("all layers hold, and none is missing", async () => {
    const { sandbox, bash } = await open(true);
    expect(sandbox).toMatchObject({ problem: undefined, incomplete: [] });
    expect(sandbox.layers()).toEqual(whole);
    const { metadata } = await callTool(site, bash, { command: "echo made > file" });
    const { layers, ...shown } = Object(metadata?.sandbox);
    expect(layers.toSorted()).toEqual(whole.toSorted());
    expect(shown).toMatchObject({ network: "proxy" });
    expect(shown).not.toHaveProperty("problem");
  });
});

describe("if bubblewrap refuses", () => {
  test.each(["--unshare-pid", "--unshare-net", "--seccomp", "--tmpfs"])(
    "%s, there is no sandbox, and commands ask",
    async (option) => {
      breakProgram("bwrap", option);
      const { sandbox, bash } = await open();
      expect(sandbox.problem).toContain("broken by the test");
      expect(sandbox.layers()).toEqual([]);
      expect((await planCall(site, bash, { command: "true" })).plan.asks).toMatchObject([
        { alwaysAsk: expect.stringContaining("broken by the test") },
      ]);
      const { metadata } = await callTool(site, bash, { command: "true" });
      expect(metadata?.sandbox).toMatchObject({ profile: "off", layers: [], problem: sandbox.problem });
    },
  );
});

test("a command that could write to a place in /proc does not start", async () => {
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], pipes });
  onTestFinished(sandbox.close);
  const bash = createBash({ supervisor, pipes, sandbox });
  // The arguments without the three that cover the place.
  replaceProgram(
    "bwrap",
    `for ((i = 1; i <= $#; i++)); do [ "\${!i}" = /proc/sys ] && set -- "\${@:1:i-2}" "\${@:i+2}" && break; done`,
  );
  const { metadata, written } = await callTool(site, bash, { command: "echo ran" });
  expect(metadata?.exit).toBe(126);
  expect(written).toBe("toolgate: nothing was run, since /proc/sys is not read-only in the sandbox\n");
});

describe("if the network of a session cannot be entered", () => {
  const line = { command: "echo ran > ran; exec 3<>/dev/tcp/127.0.0.1/1" };
  test("its commands run without any, and the result and GetServerInfo say so", async () => {
    breakProgram("nsenter");
    const { sandbox, bash } = await open();
    expect(sandbox).toMatchObject({ problem: undefined, incomplete: [] });
    const { metadata, note } = await callTool(site, bash, line);
    expect(readFileSync(join(site.directory, "ran"), "utf8")).toBe("ran\n");
    expect(metadata?.sandbox).toMatchObject({
      network: "none",
      layers: expect.arrayContaining(["network"]),
      problem: expect.stringContaining("nsenter: broken by the test"),
    });
    expect(note).toMatch(
      /The command had no network, since none could be opened: .*network = "open" under \[sandbox.agent/,
    );
    expect(sandbox.networkProblem()).toContain("broken by the test");
  });

  test("nothing runs where all layers are required", async () => {
    const { sandbox, bash } = await open(true);
    expect(sandbox.incomplete).toEqual([]);
    breakProgram("nsenter");
    rmSync(join(site.directory, "ran"), { force: true });
    await expect(callTool(site, bash, line)).rejects.toThrow(
      /The command was not run.*require = true.*broken by the test/,
    );
    expect(existsSync(join(site.directory, "ran"))).toBe(false);
  });

  test("the service does not start where all layers are required, and starts where not", async () => {
    breakProgram("nsenter");
    const settings = { ...wanted, agents: new Map(), maxMasks: 100, writable: [], readable: [], hidden: [] };
    const config = (requireAll: boolean) =>
      ({
        sandbox: { ...settings, requireAll, required: requireAll, hasBooleanNetwork: false },
        dataDirectory: site.outside,
      }) as unknown as Config;
    const log = { debug() {}, info() {}, warn() {}, error() {} };
    await using scope = new AsyncDisposableStack();
    await expect(startSandbox(config(true), log, scope)).rejects.toThrow(
      /require = true under \[sandbox\], and the network of a session cannot be opened: .*broken by the test/,
    );
    await startSandbox(config(false), log, scope);
  });
});
