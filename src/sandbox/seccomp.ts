import { closeSync, lstatSync, mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import type { LayerShare } from "./layers.ts";

/** System calls that an agent's commands get although the filter refuses them otherwise. */
export interface SystemCallSwitches {
  /** True if commands can open sockets of the family UNIX, such as those of a local database. */
  readonly unixSockets: boolean;
  /** True if commands can trace each other, as debuggers and strace do. */
  readonly ptrace: boolean;
}

/** Returns the architecture of this process if there is a filter for it. */
export function filterArchitecture(): FilterArchitecture | undefined {
  const { arch } = process;
  return arch === "x64" || arch === "arm64" ? arch : undefined;
}

/**
 * Assembles the filter of system calls, a program of classic BPF, as `bwrap --seccomp` reads it. Refused calls fail with EPERM
 * and the process goes on. Calls of another architecture or variant end it, since their numbers mean something else.
 */
export function assembleFilter(architecture: FilterArchitecture, { unixSockets, ptrace }: SystemCallSwitches): Buffer {
  const refused = { ...refusedCalls, ...(ptrace ? {} : tracingCalls) };
  const program: Instruction[] = [
    load(offsetOf.architecture),
    ...unlessEqual(auditArchitecture[architecture], [end(killProcess)]),
    load(offsetOf.number),
    ...(architecture === "x64" ? ifAtLeast(firstX32Number, [end(killProcess)]) : []),
    ...Object.values(refused).flatMap((numbers) => ifEqual(numbers[architecture], [end(failWith(EPERM))])),
    // Its flags are in memory, which a filter cannot read. C libraries then use clone.
    ...ifEqual(judgedCalls.clone3[architecture], [end(failWith(ENOSYS))]),
    // Its mode is in memory, too. C libraries do not use it, and programs that do fall back to openat.
    ...ifEqual(judgedCalls.openat2[architecture], [end(failWith(ENOSYS))]),
    ...Object.values(modeCalls).flatMap(({ [architecture]: number, mode, flags }) =>
      number === undefined ? [] : ifEqual(number, unlessSetId(mode, flags)),
    ),
    ...ifEqual(judgedCalls.clone[architecture], [
      load(argument(0)),
      ...ifAnyBit(newNamespaces, [end(failWith(EPERM))]),
      end(allow),
    ]),
    ...ifEqual(judgedCalls.socket[architecture], [
      load(argument(0)),
      ...(unixSockets ? [] : ifEqual(socketFamily.unix, [end(failWith(EPERM))])),
      ...[socketFamily.packet, socketFamily.alg, socketFamily.vsock].flatMap((family) =>
        ifEqual(family, [end(failWith(EAFNOSUPPORT))]),
      ),
      end(allow),
    ]),
    ...ifEqual(judgedCalls.ioctl[architecture], [
      load(argument(1)),
      ...[terminalInput, terminalSelection].flatMap((request) => ifEqual(request, [end(failWith(EPERM))])),
      end(allow),
    ]),
    end(allow),
  ];
  const bytes = Buffer.alloc(program.length * instructionBytes);
  program.forEach(({ code, ifTrue = 0, ifFalse = 0, value }, i) => {
    const at = i * instructionBytes;
    bytes.writeUInt16LE(code, at);
    bytes.writeUInt8(ifTrue, at + 2);
    bytes.writeUInt8(ifFalse, at + 3);
    bytes.writeUInt32LE(value >>> 0, at + 4);
  });
  return bytes;
}

/** An instruction of classic BPF; the jumps skip that number of instructions. */
interface Instruction {
  code: number;
  ifTrue?: number;
  ifFalse?: number;
  value: number;
}

const instructionBytes = 8;

/** Offsets in `struct seccomp_data`. */
const offsetOf = { number: 0, architecture: 4 };
/** Offset of a 64-bit argument: its low half, which is all that the kernel uses of these. */
const argument = (position: number) => 16 + 8 * position;

const load = (value: number): Instruction => ({ code: 0x20, value });
const end = (value: number): Instruction => ({ code: 0x06, value });
/** Makes an instruction that skips its body in one of its two cases. */
const jump =
  (code: number, skips: "ifTrue" | "ifFalse") =>
  (value: number, body: readonly Instruction[]): Instruction[] => [{ code, [skips]: body.length, value }, ...body];
const ifEqual = jump(0x15, "ifFalse");
const unlessEqual = jump(0x15, "ifTrue");
const ifAtLeast = jump(0x35, "ifFalse");
const unlessAnyBit = jump(0x45, "ifTrue");
const ifAnyBit = jump(0x45, "ifFalse");

/**
 * Permits a call unless its mode has a set-ID bit: such a file would run as the user of the service, whichever user starts it, also
 * outside of the sandbox. With `flags` the mode counts only if a file is created.
 */
const unlessSetId = (mode: number, flags: number | undefined) => [
  ...(flags === undefined ? [] : [load(argument(flags)), ...unlessAnyBit(creates, [end(allow)])]),
  load(argument(mode)),
  ...ifAnyBit(setId, [end(failWith(EPERM))]),
  end(allow),
];

const allow = 0x7fff0000;
const killProcess = 0x80000000;
const failWith = (errno: number) => 0x00050000 | errno;

const { EPERM, ENOSYS, EAFNOSUPPORT } = constants.errno;

const socketFamily = { unix: 1, packet: 17, alg: 38, vsock: 40 };

/** CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID and CLONE_NEWNET. */
const newNamespaces = 0x7e020000;

/** S_ISUID and S_ISGID. */
const setId = 0o6000;
/** O_CREAT, and the bit of O_TMPFILE that no other flag has. */
const creates = 0o100 | 0o20000000;

/** TIOCSTI and TIOCLINUX, which type into a terminal for its user. */
const terminalInput = 0x5412;
const terminalSelection = 0x541c;

/** The processor architectures for which the filter of system calls is known. */
type FilterArchitecture = "x64" | "arm64";

/** Numbers of a system call. */
type Numbers = Readonly<Record<FilterArchitecture, number>>;

/** Numbers of the architectures in the kernel's record of a system call. */
export const auditArchitecture: Numbers = { x64: 0xc000003e, arm64: 0xc00000b7 };

/** Numbers from here on are system calls of the x32 variant of x64, for which no other number in the filter holds. */
const firstX32Number = 0x40000000;

/** System calls that the filter judges by an argument. */
export const judgedCalls = {
  clone: { x64: 56, arm64: 220 },
  clone3: { x64: 435, arm64: 435 },
  ioctl: { x64: 16, arm64: 29 },
  openat2: { x64: 437, arm64: 437 },
  socket: { x64: 41, arm64: 198 },
} satisfies Record<string, Numbers>;

/**
 * System calls that give a file a mode, by the positions of the mode and, where it counts only for new files, of the flags. The
 * kernel ignores set-ID bits of `mkdir`.
 */
export const modeCalls: Readonly<Record<string, Partial<Numbers> & { mode: number; flags?: number }>> = {
  chmod: { x64: 90, mode: 1 },
  fchmod: { x64: 91, arm64: 52, mode: 1 },
  fchmodat: { x64: 268, arm64: 53, mode: 2 },
  fchmodat2: { x64: 452, arm64: 452, mode: 2 },
  open: { x64: 2, mode: 2, flags: 1 },
  openat: { x64: 257, arm64: 56, mode: 3, flags: 2 },
  creat: { x64: 85, mode: 1 },
  mknod: { x64: 133, mode: 1 },
  mknodat: { x64: 259, arm64: 33, mode: 2 },
};

/** System calls with which a process reads or controls another one; the switch `ptrace` permits them. */
export const tracingCalls = {
  ptrace: { x64: 101, arm64: 117 },
  process_vm_readv: { x64: 310, arm64: 270 },
  process_vm_writev: { x64: 311, arm64: 271 },
  kcmp: { x64: 312, arm64: 272 },
} satisfies Record<string, Numbers>;

/** System calls that no command needs, and that reach the kernel's administration or its rarely used parts. */
export const refusedCalls = {
  // Mounts and namespaces: a command must not change what it sees.
  mount: { x64: 165, arm64: 40 },
  umount2: { x64: 166, arm64: 39 },
  pivot_root: { x64: 155, arm64: 41 },
  open_tree: { x64: 428, arm64: 428 },
  move_mount: { x64: 429, arm64: 429 },
  fsopen: { x64: 430, arm64: 430 },
  fsconfig: { x64: 431, arm64: 431 },
  fsmount: { x64: 432, arm64: 432 },
  fspick: { x64: 433, arm64: 433 },
  mount_setattr: { x64: 442, arm64: 442 },
  open_tree_attr: { x64: 467, arm64: 467 },
  unshare: { x64: 272, arm64: 97 },
  setns: { x64: 308, arm64: 268 },
  open_by_handle_at: { x64: 304, arm64: 265 },
  // Rarely used parts of the kernel in which most flaws were found.
  bpf: { x64: 321, arm64: 280 },
  io_uring_setup: { x64: 425, arm64: 425 },
  io_uring_enter: { x64: 426, arm64: 426 },
  io_uring_register: { x64: 427, arm64: 427 },
  userfaultfd: { x64: 323, arm64: 282 },
  perf_event_open: { x64: 298, arm64: 241 },
  // Keys of the kernel belong to the user, not to the command.
  add_key: { x64: 248, arm64: 217 },
  request_key: { x64: 249, arm64: 218 },
  keyctl: { x64: 250, arm64: 219 },
  // Descriptors of other processes.
  pidfd_getfd: { x64: 438, arm64: 438 },
  // Administration of the machine.
  acct: { x64: 163, arm64: 89 },
  swapon: { x64: 167, arm64: 224 },
  swapoff: { x64: 168, arm64: 225 },
  reboot: { x64: 169, arm64: 142 },
  init_module: { x64: 175, arm64: 105 },
  delete_module: { x64: 176, arm64: 106 },
  finit_module: { x64: 313, arm64: 273 },
  quotactl: { x64: 179, arm64: 60 },
  quotactl_fd: { x64: 443, arm64: 443 },
  kexec_load: { x64: 246, arm64: 104 },
  kexec_file_load: { x64: 320, arm64: 294 },
} satisfies Record<string, Numbers>;

/** The filters of system calls, each assembled when it is first used. */
export type SeccompFilters = ReturnType<typeof createSeccompFilters>;

/** Creates the filters. Each is a file without a name, opened again for each command, since bubblewrap reads to its end. */
export function createSeccompFilters() {
  const architecture = filterArchitecture();
  const files = new Map<string, number>();
  return {
    /** Returns the share that filters the system calls of one command; empty on an architecture without a filter. */
    share({ unixSockets, ptrace }: SystemCallSwitches): LayerShare {
      if (architecture === undefined) return {};
      const key = `${unixSockets} ${ptrace}`;
      const file = files.get(key) ?? openUnnamed(assembleFilter(architecture, { unixSockets, ptrace }));
      files.set(key, file);
      const descriptor = reopenUnnamed(file);
      return {
        layers: ["system_calls"],
        files: [{ descriptor, option: "--seccomp", layer: "seccomp" }],
        release: async () => closeSync(descriptor),
      };
    },
    close(): void {
      for (const file of files.values()) closeSync(file);
      files.clear();
    },
  };
}

/**
 * Returns the file to mount over files that may not be read. Nobody can open the first one for reading, also not root; for
 * programs it is a plain file, so that git and archivers report an error and do not store it. The other one is a device.
 */
export function findMaskFile(): string {
  return isUnreadable(writeOnlyFile) ? writeOnlyFile : "/dev/null";
}

const writeOnlyFile = "/sys/bus/platform/drivers_probe";

function isUnreadable(path: string): boolean {
  try {
    if (!lstatSync(path).isFile()) return false;
    closeSync(openSync(path, "r"));
    return false;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EACCES";
  }
}

/** Stores content in a file without a name, so that a crash leaves nothing behind. Returns its descriptor, which the caller closes. */
export function openUnnamed(content: string | Buffer): number {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-file-"));
  try {
    const file = join(directory, "file");
    writeFileSync(file, content);
    return openSync(file, "r");
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** Opens an unnamed file again: a program that inherits the new descriptor reads from the beginning. The caller closes it. */
export function reopenUnnamed(descriptor: number): number {
  return openSync(`/proc/self/fd/${descriptor}`, "r");
}
