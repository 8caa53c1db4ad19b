import { expect, test } from "vitest";
import { commandLimits } from "../../src/sandbox/limits.ts";
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
