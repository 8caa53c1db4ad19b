import { execFileSync } from "node:child_process";
import { mkdir, open, readFile, rename, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, openTestWorkspace, planCall, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { ChangedAfterApproval, InvalidInput, ToolFailure } from "../../src/tool/errors.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { untilDead } from "./processes.ts";

const supervisor = createSupervisor({ replicaId: `bash-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const wanted = { profile: "off", network: "open" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
const bash = createBash({ supervisor, sandbox, pipes });
let site: TestWorkspace;
beforeAll(async () => {
  process.env.TOOLGATE_TOKEN = "secret";
});
afterAll(async () => {
  delete process.env.TOOLGATE_TOKEN;
  await supervisor.close();
  await pipes.close();
});
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const run = (command: string, input = {}, options?: RunOptions) => callTool(site, bash, { command, ...input }, options);
/** The process ids that a command printed, one a line. */
const printed = (text: string) => text.split("\n").filter(Boolean).map(Number);

describe("output", () => {
  test("has stdout and stderr in the order in which they were written", async () => {
    const { written, output, metadata } = await run("for i in 1 2 3; do echo out $i; echo err $i >&2; done");
    expect(written).toBe("out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n");
    expect(output).toBeUndefined();
    expect(metadata).toMatchObject({ exit: 0, signal: null });
  });

  test("can be written through /dev/stdout and /dev/stderr", async () => {
    expect((await run("echo a > /dev/stdout; echo b | tee /dev/stderr > /dev/null")).written).toBe("a\nb\n");
  });

  test("that is empty is reported as such", async () => {
    expect((await run("true")).output).toBe("(no output)");
  });

  test("is forwarded while the command runs", async () => {
    const go = join(site.directory, "go");
    const { written } = await run(
      `echo first; until [ -e go ]; do sleep 0.02; done; echo second`,
      {},
      { onOutput: async (text) => (text === "first\n" ? await writeFile(go, "") : undefined) },
    );
    expect(written).toBe("first\nsecond\n");
  });

  test("of many megabytes arrives whole, even with a slow reader", async () => {
    let turns = 0;
    const { written } = await run(
      "seq 1 700000",
      {},
      {
        async onOutput() {
          turns += 1;
          if (turns % 10 === 0) await new Promise((resolve) => setImmediate(resolve));
        },
      },
    );
    expect(written.length).toBe(4_788_895);
    expect(written.endsWith("\n700000\n")).toBe(true);
  });

  test("that the store refuses fails the command and the call with that error", async () => {
    const refusal = new Error("no capacity");
    let pid = 0;
    const ended = run(
      "echo $$; exec sleep 1000",
      {},
      {
        onOutput(text) {
          pid = Number(text);
          throw refusal;
        },
      },
    );
    await expect(ended).rejects.toBe(refusal);
    await untilDead(pid);
  });
});

describe("the end of a command", () => {
  test("with a non-zero exit code is not an error; the model sees the code", async () => {
    const { metadata, note } = await run("exit 42");
    expect(metadata).toMatchObject({ exit: 42, signal: null });
    expect(note).toBe("<bash_metadata>\ncommand exited with code 42\n</bash_metadata>");
  });

  test("of a child by a signal is reported as the shell does", async () => {
    const { metadata, note } = await run("bash -c 'kill -9 $$'; exit $?");
    expect(metadata).toMatchObject({ exit: 137, signal: null });
    expect(note).toContain("command exited with code 137 (128 + SIGKILL)");
  });

  test("by a signal is reported, too", async () => {
    const { metadata, note } = await run("kill -9 $$");
    expect(metadata).toMatchObject({ exit: null, signal: "SIGKILL" });
    expect(note).toContain("command was ended by SIGKILL");
  });

  test("is the shell's exit; background processes of its group are killed", async () => {
    const { written } = await run("sleep 1000 & echo $!");
    await untilDead(printed(written)[0] ?? 0);
  });

  test("leaves processes that read its last output time to end", async () => {
    const lastOutput = async () => {
      await run("exec > >(sleep 0.02; cat > log); seq 1 1000");
      return await readFile(join(site.directory, "log"), "utf8");
    };
    // A busy machine may need more than that time.
    await expect.poll(lastOutput).toMatch(/\n1000\n$/);
  });

  test("comes even if a background process keeps writing", async () => {
    const { metadata } = await run("yes & echo $! > pid");
    expect(metadata).toMatchObject({ exit: 0 });
    await untilDead(Number(await readFile(join(site.directory, "pid"), "utf8")));
  });

  test("loses no output that was written before it", async () => {
    const { written } = await run("sleep 1000 & seq 1 20000; exit 3");
    expect(written.endsWith("\n20000\n")).toBe(true);
  });
});

describe("stopping", () => {
  /** Prints its own id, a grandchild's and one's that has left group and session; then waits. */
  const family = "echo $$; (sleep 1000 & echo $!; wait) & setsid sleep 1000 & echo $!; wait";

  test("at the timeout preserves the output, ends all processes and reports it", async () => {
    const { written, note, metadata } = await run(family, { timeout: 500 });
    const pids = printed(written);
    expect(pids).toHaveLength(3);
    for (const pid of pids) await untilDead(pid);
    expect(metadata).toMatchObject({ signal: "SIGTERM" });
    expect(note).toMatch(
      /^<bash_metadata>\nshell tool terminated command after exceeding timeout 500 ms\. .* larger timeout value in milliseconds\.\n<\/bash_metadata>$/,
    );
  });

  test("on cancel ends all processes and throws the reason", async () => {
    const cancel = new AbortController();
    const reason = new Error("cancelled");
    let written = "";
    const ended = run(
      family,
      {},
      {
        signal: cancel.signal,
        onOutput(text) {
          written = text;
          if (printed(text).length === 3) cancel.abort(reason);
        },
      },
    );
    await expect(ended).rejects.toBe(reason);
    for (const pid of printed(written)) await untilDead(pid);
  });

  test("ends processes that ignore SIGTERM, and gives others time to end", async () => {
    const cancel = new AbortController();
    let written = "";
    const command = "trap 'echo ended well; exit' TERM; (trap '' TERM; echo $BASHPID; sleep 1000; sleep 1000) & wait";
    const ended = run(
      command,
      {},
      {
        signal: cancel.signal,
        onOutput(text) {
          written = text;
          cancel.abort(new Error("cancelled"));
        },
      },
    );
    await expect(ended).rejects.toThrow("cancelled");
    expect(written).toContain("ended well\n");
    await untilDead(printed(written)[0] ?? 0);
  });

  test("before the start runs nothing", async () => {
    const reason = new Error("cancelled");
    await expect(run("touch ran", {}, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    await expect(readFile(join(site.directory, "ran"))).rejects.toThrow("ENOENT");
  });
});

test("a command sees no secret of the service, and nothing on its input", async () => {
  const { written } = await run("env; cat");
  expect(written).not.toContain("secret");
  const allowed =
    /^(HOME|LANG|LC_\w+|GIT_CONFIG_\w+|TZ|USER|LOGNAME|SHELL|TMPDIR|PATH|TERM|TOOLGATE_REPLICA|TOOLGATE_CALL|PWD|OLDPWD|SHLVL|_)=/;
  expect(
    written
      .trim()
      .split("\n")
      .filter((line) => !allowed.test(line)),
  ).toEqual([]);
  expect(written).toContain("TERM=dumb\n");
  expect(written).toMatch(/^TOOLGATE_CALL=ses_test\/call-\S+$/m);
});

test("git runs no program that a directory without .git names", async () => {
  const setting = `git init -q --bare evil && git -C evil config core.fsmonitor 'touch ${site.directory}/ran; false' && git -C evil config core.bare false && git -C evil config core.worktree .`;
  await run(setting);
  const { written, metadata } = await run("git status", { workdir: "evil" });
  expect(metadata).toMatchObject({ exit: 128 });
  expect(written).toContain("safe.bareRepository");
  expect((await run("git init -q own && cd own && git config core.fsmonitor ../x && git status")).written).toContain(
    "No commits yet",
  );
  expect((await run("ls")).written).not.toContain("ran");
});

test("concurrent commands have separate output", async () => {
  const numbers = Array.from({ length: 50 }, (_, number) => number);
  const ended = await Promise.all(numbers.map((number) => run(`echo ${number}; echo ${number} >&2`)));
  expect(ended.map(({ written }) => written)).toEqual(numbers.map((number) => `${number}\n${number}\n`));
});

test("a command does not inherit open files of the service", async () => {
  await using _ = await open(join(site.directory, "opened"), "w");
  expect((await run("ls -l /proc/$$/fd")).written).not.toContain("opened");
});

describe("workdir", () => {
  test("is the working directory, and the approval is bound to it", async () => {
    await mkdir(join(site.directory, "sub"));
    const call = await planCall(site, bash, { command: "pwd", workdir: "sub", description: "Where am I" });
    expect(call.plan).toMatchObject({ title: "Where am I", cwd: join(site.directory, "sub"), timeoutMs: 125_000 });
    expect(call.plan.asks).toEqual([
      {
        permission: "bash",
        patterns: ["pwd"],
        cwd: join(site.directory, "sub"),
        metadata: { command: "pwd", workdir: "sub", description: "Where am I" },
      },
    ]);
    expect((await call.plan.inspect?.())?.preview?.()).toEqual({ command: "pwd", paths: ["sub"] });
    expect((await call.run()).written).toBe(`${site.directory}/sub\n`);
  });

  test("outside the workspace is asked for first, whether it exists or not", async () => {
    const call = await planCall(site, bash, { command: "pwd", workdir: "../other/none" });
    expect(call.plan.asks).toMatchObject([
      { permission: "external_directory", patterns: [`${site.outside}/none/*`] },
      { permission: "bash" },
    ]);
    await expect(call.run()).rejects.toThrow(ToolFailure);
  });

  test("that is a file is refused before anyone is asked", async () => {
    await writeFile(join(site.directory, "file"), "");
    const { plan } = await planCall(site, bash, { command: "pwd", workdir: "file" });
    await expect(plan.inspect?.()).rejects.toThrow("is not a directory");
  });

  test("that was replaced by a link after the approval is refused", async () => {
    await mkdir(join(site.directory, "sub"));
    const call = await planCall(site, bash, { command: "pwd", workdir: "sub" });
    await rename(join(site.directory, "sub"), join(site.directory, "moved"));
    await symlink(site.outside, join(site.directory, "sub"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
  });
});

test.each([
  [{ command: " \n" }, "command is empty"],
  [{ command: "a\0b" }, "NUL"],
  [{ command: `: ${"é".repeat(65_535)}` }, "over 131071 bytes"],
  [{ command: "cd src" }, "set workdir"],
  [{ command: "cd" }, "set workdir"],
  [{ command: "ls", timeout: 0 }, "timeout"],
  [{ command: "ls", timeout: 3_595_001 }, "timeout"],
])("input that cannot be run is refused with what to do: %#", (input, message) => {
  expect(() => boundTool(bash).decode(input)).toThrow(InvalidInput);
  expect(() => boundTool(bash).decode(input)).toThrow(message);
});

test("the longest command that is accepted can be run", async () => {
  const command = `: ${"x".repeat(131_069)}`;
  expect((await run(command)).metadata).toMatchObject({ exit: 0 });
  expect(() => boundTool(bash).decode({ command: "cd src && ls" })).not.toThrow();
});

test("a command ends with the process that starts commands, and the next one gets another", async () => {
  const killStarter = async () => void execFileSync("pkill", ["-KILL", "-P", `${process.pid}`, "-f", "spawn-process"]);
  const { written, metadata } = await run("echo $$; sleep 60", {}, { onOutput: killStarter });
  expect(metadata).toMatchObject({ exit: null, signal: "SIGKILL" });
  await untilDead(printed(written)[0] ?? 0);
  expect((await run("echo again")).written).toBe("again\n");
});

test("without a supervisor no command runs", async () => {
  const closed = createSupervisor({ replicaId: "closed", leaseMs: 15_000 });
  await closed.close();
  const refused = callTool(site, createBash({ supervisor: closed, sandbox, pipes }), { command: "touch ran" });
  await expect(refused).rejects.toMatchObject({
    message: "The command was not run, since it cannot be supervised: Error: the service is stopping.",
    hadNoEffects: true,
  });
  await expect(readFile(join(site.directory, "ran"))).rejects.toThrow("ENOENT");
});
