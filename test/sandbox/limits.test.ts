import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { startLastingProgram } from "../../src/compose/lasting-program.ts";
import { commandLimits } from "../../src/sandbox/control-groups.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { mountSmallDisk } from "../tmpfs.ts";
import { processesNamed } from "../tools/processes.ts";
import { runConfined } from "./confined.ts";

const bash = (line: string, options?: Parameters<typeof runConfined>[1]) =>
  runConfined(["/bin/bash", "--noprofile", "--norc", "-c", line], options);

test("a command that fills the disk with one file is stopped at the maximum size of a file", async () => {
  // Seeks, so that nothing is written in case the limit does not hold.
  const bytes = commandLimits.maxFileBytes;
  const line = `dd if=/dev/zero of=full bs=1 count=1 seek=${bytes}; echo "code $?"; dd if=/dev/zero of=fits bs=1 count=1 seek=${bytes - 1}; echo "code $?"`;
  const { printed, errors } = await bash(line);
  expect(printed).toBe("code 153\ncode 0\n");
  expect(errors).toContain("File size limit exceeded");
});

test("a command leaves no core files and opens a limited number of files", async () => {
  expect((await bash("ulimit -c; ulimit -n")).printed).toBe(`0\n${commandLimits.maxOpenFiles}\n`);
});

test("a command is the first that the kernel ends when memory runs out", async () => {
  expect((await bash("cat /proc/self/oom_score_adj")).printed).toBe("1000\n");
});

test.runIf(process.getuid?.() === 0)(
  "a fork bomb of a user is stopped at the maximum number of processes",
  async () => {
    const bomb = [
      "import os, signal",
      "os.setsid()",
      "count = 0",
      "try:",
      "    while count < 2000:",
      "        if os.fork() == 0: signal.pause()",
      "        count += 1",
      "except BlockingIOError: pass",
      "print(count, flush=True)",
      "os.killpg(0, signal.SIGKILL)",
    ].join("\n");
    const { printed } = await runConfined(["/usr/bin/python3", "-c", bomb], { asUser: true });
    expect(Number(printed)).toBeLessThan(commandLimits.maxProcesses);
    expect(Number(printed)).toBeGreaterThan(commandLimits.maxProcesses - 20);
  },
);

const supervisor = createSupervisor({ replicaId: `limits-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const maxMemoryBytes = 200 * 1024 ** 2;
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

const wanted = { profile: "workspace-write", network: "none" } as const;

async function openBash(limits: Partial<Parameters<typeof openSandbox>[0]> = {}) {
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], pipes, ...limits });
  onTestFinished(sandbox.close);
  return createBash({ supervisor, sandbox, pipes });
}

async function run(command: string, limits: Parameters<typeof openBash>[0] = { maxMemoryBytes }) {
  return await callTool(site, await openBash(limits), { command });
}

describe("a command that exceeds a limit with all its processes together", () => {
  // Each takes 100 MiB and then waits for the others, or for its end.
  const eater = `python3 -c "x = b'x' * (100 << 20); open('fed', 'a').write('x'); import time
while len(open('fed').read()) < 4 or not __import__('os').path.exists('done'): time.sleep(0.02)"`;
  const eaters = `rm -f fed done; for i in 1 2 3 4; do ${eater} & done; until [ "$(cat fed 2> /dev/null)" = xxxx ]; do sleep 0.02; done`;

  test("in memory is killed, and others go on", async () => {
    const { metadata, note } = await run(`${eaters}; wait`);
    expect(metadata).toMatchObject({ exit: null, signal: "SIGKILL" });
    expect(note).toContain(
      "command was killed, since its processes took more than 200 MiB of memory; the operator can raise memory_max",
    );
    expect((await run("echo goes on")).written).toBe("goes on\n");
  });

  test("in memory by files that lie there is killed, too", async () => {
    const { note } = await run("head -c 300M /dev/zero > /dev/shm/one; head -c 300M /dev/zero > /run/two; sleep 60");
    expect(note).toContain("command was killed, since its processes and its files in memory took more than 200 MiB");
  });

  test("is none where they share memory", async () => {
    const shared = `python3 -c "import os; x = b'x' * (100 << 20)
for i in range(4):
    if os.fork() == 0: __import__('time').sleep(1); os._exit(0)
for i in range(4): os.wait()
print('shared')"`;
    expect((await run(shared)).written).toBe("shared\n");
  });

  test("is none with the default, as a control", async () => {
    const { metadata } = await run(`${eaters}; touch done; wait`, {});
    expect(metadata).toMatchObject({ exit: 0 });
  });

  test.runIf(process.getuid?.() === 0)("by a fork bomb of root is killed with all of them", async () => {
    const mark = `bomb-${process.pid}`;
    // Bounded, in case no limit holds.
    const bomb = `for ((i = 0; i < 1300; i++)); do (exec -a ${mark} sleep 600) & done; wait`;
    const { note } = await run(bomb, {});
    expect(note).toContain("command was killed, since it had more than 1024 processes");
    expect(await processesNamed(mark)).toEqual([]);
  });
});

describe.runIf(process.getuid?.() === 0)("a command that fills the disk", () => {
  /** Writes files again and again, also when the disk is full. */
  const filler = (content: string) => `python3 -c "import itertools, time
for i in itertools.count():
    try:
        with open(f'full{i}', 'wb') as file: file.write(${content})
        time.sleep(0.001)
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.1)" 2>&1`;

  /** A workspace on a small disk. */
  async function openFull(maxFiles = 0): Promise<TestWorkspace> {
    const full = await openTestWorkspace();
    onTestFinished(full.remove);
    full.judge = judgeBy({});
    mountSmallDisk(full.directory, 48, maxFiles);
    return full;
  }

  test.each([
    [
      "with data",
      "b'x' * 32768",
      0,
      /^command was killed, since the disk of \S+ has less than 3 MiB left, and it went/m,
    ],
    ["with many files", "b''", 3_000, /^command was killed, since the disk of \S+ can hold fewer than 150 more files/m],
  ])("%s is killed, and others go on", async (_, content, maxFiles, note) => {
    const full = await openFull(maxFiles);
    const bash = await openBash();
    const other = callTool(full, bash, { command: "until [ -e killed ]; do sleep 0.1; done; echo goes on" });
    expect((await callTool(full, bash, { command: filler(content) })).note).toMatch(note);
    rmSync(join(full.directory, "full0"));
    writeFileSync(join(full.directory, "killed"), "");
    expect((await other).written).toBe("goes on\n");
  });

  test("goes on until it is full where nothing watches it, as a control", async () => {
    const bash = await openBash({ wanted: { profile: "off", network: "open" } });
    const { written } = await callTool(await openFull(), bash, {
      command: `${filler("b'x' * 32768")} | grep -m1 space`,
    });
    expect(written).toContain("No space left on device");
  });
});

test("a program that outlives calls and takes all memory is killed, and its end says so", async () => {
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], pipes, maxMemoryBytes });
  onTestFinished(sandbox.close);
  const program = {
    call: { sessionId: "limits", callId: "program" },
    argv: ["python3", "-c", "x = b'x' * (400 << 20); import time; time.sleep(60)"] as const,
    env: { PATH: process.env.PATH ?? "" },
  };
  const place = { agent: "build", cwd: site.directory, workspace: site.directory, directories: [] };
  const { exited } = await startLastingProgram({ sandbox, supervisor }, program, place);
  expect(await exited).toBe(
    "killed, since its processes took more than 200 MiB of memory; the operator can raise memory_max under [sandbox]",
  );
});
