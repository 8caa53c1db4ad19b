import { constants } from "node:os";
import {
  auditArchitecture,
  type FilterArchitecture,
  firstX32Number,
  judgedCalls,
  modeCalls,
  refusedCalls,
  tracingCalls,
} from "./system-calls.ts";

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
const ifEqual = (value: number, body: readonly Instruction[]) => [{ code: 0x15, ifFalse: body.length, value }, ...body];
const unlessEqual = (value: number, body: readonly Instruction[]) => [
  { code: 0x15, ifTrue: body.length, value },
  ...body,
];
const ifAtLeast = (value: number, body: readonly Instruction[]) => [
  { code: 0x35, ifFalse: body.length, value },
  ...body,
];
const unlessAnyBit = (value: number, body: readonly Instruction[]) => [
  { code: 0x45, ifTrue: body.length, value },
  ...body,
];
const ifAnyBit = (value: number, body: readonly Instruction[]) => [
  { code: 0x45, ifFalse: body.length, value },
  ...body,
];

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
