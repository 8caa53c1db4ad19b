import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  assembleFilter,
  auditArchitecture,
  judgedCalls,
  modeCalls,
  refusedCalls,
  tracingCalls,
} from "../../src/sandbox/seccomp.ts";
import { runConfined, runPlainly } from "./confined.ts";

// As an argument, since the file may lie in a temporary directory, which commands do not see.
const script = readFileSync(join(import.meta.dirname, "system-calls.py"), "utf8");
const attempts = ["/usr/bin/python3", "-c", script] as const;
const outcomes = (printed: string) =>
  Object.fromEntries(
    printed
      .trim()
      .split("\n")
      .map((line) => line.split(": ")),
  );

/** Outcomes of what every command may do. */
const permitted = {
  ...{ "socket AF_INET": "ok", "socketpair AF_UNIX": "ok", fork: "ok" },
  ...{ "chmod without set-ID bits": "EFAULT", "openat to read": "ok" },
  // The kernel leaves these bits out.
  ...{ "set-ID by mkdir": "ignored", "set-ID by mkdirat": "ignored" },
};
/** Ways to leave a file that runs as the user or group of the service, whichever user starts it. */
const setIds = [
  ..."chmod,chmod of the group,fchmod,fchmodat,fchmodat2,open,openat,openat of an unnamed file".split(","),
  ...["creat", "mknod", "mknodat"],
].map((way) => `set-ID by ${way}`);
const sockets = { "socket AF_UNIX": "EPERM" };
const tracing = { ptrace: "EPERM", process_vm_readv: "EPERM" };
const ofX64 = process.arch === "x64" ? { "x32 getpid": "SIGSYS", "32 bits getpid": "SIGSYS" } : {};
/** Outcomes that differ without the filter. */
const refused = {
  "socket AF_VSOCK": "EAFNOSUPPORT",
  "socket AF_PACKET": "EAFNOSUPPORT",
  io_uring_setup: "EPERM",
  userfaultfd: "EPERM",
  keyctl: "EPERM",
  mount: "EPERM",
  fsopen: "EPERM",
  setns: "EPERM",
  open_by_handle_at: "EPERM",
  pidfd_getfd: "EPERM",
  bpf: "EPERM",
  perf_event_open: "EPERM",
  "unshare of users": "EPERM",
  "clone of users": "EPERM",
  clone3: "ENOSYS",
  "ioctl TIOCSTI": "EPERM",
  ...Object.fromEntries(setIds.map((way) => [way, "EPERM"])),
  "set-ID by openat2": "ENOSYS",
  ...ofX64,
};

describe("a command in the sandbox", () => {
  test("gets an error for each system call that the filter refuses, and other outcomes without it", async () => {
    const inside = outcomes((await runConfined(attempts)).printed);
    const expected = { ...permitted, ...sockets, ...tracing, ...refused, "socket AF_ALG": "EAFNOSUPPORT" };
    expect(inside).toMatchObject(expected);
    const outside = outcomes(runPlainly(attempts));
    expect(outside).toMatchObject(permitted);
    for (const [name, outcome] of Object.entries({ ...sockets, ...tracing, ...refused }))
      expect({ [name]: outside[name] }).not.toEqual({ [name]: outcome });
  });

  test("opens sockets of the family UNIX and traces processes where its agent has the switches", async () => {
    const inside = outcomes((await runConfined(attempts, { unixSockets: true, ptrace: true })).printed);
    expect(inside).toMatchObject({ ...permitted, ...refused, "socket AF_UNIX": "ok" });
    expect(inside.ptrace).toBe("ESRCH");
    expect(inside.process_vm_readv).not.toBe("EPERM");
  });
});

test("a command as root opens nothing in /proc for writing by which it would change the machine", async () => {
  const open = `
import os
paths = [os.path.join(at, name) for top in ("sys", "fs", "acpi", "scsi") for at, _, names in os.walk("/proc/" + top) for name in names]
def opens(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        return True
    except OSError:
        return False
print(sum(map(opens, paths + ["/proc/sysrq-trigger"])), len(paths) > 100)`;
  const argv = ["/usr/bin/python3", "-c", open] as const;
  expect((await runConfined(argv)).printed).toBe("0 True\n");
  expect(Number.parseInt(runPlainly(argv), 10), "control: outside, as root").toBeGreaterThan(100);
});

describe.each(["x64", "arm64"] as const)("the filter of %s", (architecture) => {
  const run = (number: number, args: readonly number[] = [], on: number = auditArchitecture[architecture]) =>
    verdictOf(assembleFilter(architecture, { unixSockets: false, ptrace: false }), { number, args, on });
  const at = (numbers: { x64: number; arm64: number }) => numbers[architecture];
  const ofModes = Object.values(modeCalls).flatMap(({ [architecture]: number, ...call }) =>
    number === undefined ? [] : [{ number, ...call }],
  );

  test("refuses each call of its tables and permits its neighbours", () => {
    const numbers = Object.values({ ...refusedCalls, ...tracingCalls }).map(at);
    for (const number of numbers) expect(run(number)).toBe("EPERM");
    const judged = [...Object.values(judgedCalls).map(at), ...ofModes.map(({ number }) => number)];
    for (let number = 0; number < 500; number += 1)
      if (![...numbers, ...judged].includes(number)) expect(run(number)).toBe("allow");
  });

  test("judges sockets, clones and terminal requests by their argument", () => {
    const { socket, clone, clone3, ioctl } = judgedCalls;
    expect([1, 2, 10, 16, 17, 38, 40].map((family) => run(at(socket), [family]))).toEqual([
      "EPERM",
      "allow",
      "allow",
      "allow",
      "EAFNOSUPPORT",
      "EAFNOSUPPORT",
      "EAFNOSUPPORT",
    ]);
    expect([0x11, 0x10000011, 0x40000011].map((flags) => run(at(clone), [flags]))).toEqual(["allow", "EPERM", "EPERM"]);
    expect(run(at(clone3))).toBe("ENOSYS");
    expect([0x5401, 0x5412, 0x541c].map((request) => run(at(ioctl), [0, request]))).toEqual([
      "allow",
      "EPERM",
      "EPERM",
    ]);
  });

  test("refuses modes with a set-ID bit, where the call makes or changes a file", () => {
    for (const { number, mode, flags } of ofModes) {
      const withMode = (bits: number, flag = 0) => {
        const args = [0, 0, 0, 0].with(mode, bits);
        return run(number, flags === undefined ? args : args.with(flags, flag));
      };
      for (const bits of [0o4755, 0o2755, 0o102644]) {
        if (flags === undefined) expect(withMode(bits)).toBe("EPERM");
        else expect([0x40, 0x410000, 2].map((flag) => withMode(bits, flag))).toEqual(["EPERM", "EPERM", "allow"]);
      }
      expect(withMode(0o1777, 0x40)).toBe("allow");
    }
    expect(run(at(judgedCalls.openat2))).toBe("ENOSYS");
  });

  test("ends a process that calls as another architecture", () => {
    expect(run(39, [], 0x40000003)).toBe("kill");
    if (architecture === "x64") expect(run(0x40000000 | 39)).toBe("kill");
  });
});

/** Runs a program of classic BPF on one system call, as the kernel does. */
function verdictOf(program: Buffer, { number, args, on }: { number: number; args: readonly number[]; on: number }) {
  const words = new Map([[0, number], [4, on], ...args.map((value, i) => [16 + 8 * i, value] as const)]);
  for (let at = 0, loaded = 0; ; at += 1) {
    const [code, ifTrue, ifFalse] = [program.readUInt16LE(at * 8), program[at * 8 + 2] ?? 0, program[at * 8 + 3] ?? 0];
    const value = program.readUInt32LE(at * 8 + 4);
    if (code === 0x06) return verdicts.get(value);
    if (code === 0x20) loaded = words.get(value) ?? 0;
    else {
      const tests = new Map([
        [0x15, loaded === value],
        [0x35, loaded >= value],
        [0x45, (loaded & value) >>> 0 !== 0],
      ]);
      at += tests.get(code) ? ifTrue : ifFalse;
    }
  }
}

const verdicts = new Map([
  [0x7fff0000, "allow"],
  [0x80000000, "kill"],
  [0x00050001, "EPERM"],
  [0x00050026, "ENOSYS"],
  [0x00050061, "EAFNOSUPPORT"],
]);
