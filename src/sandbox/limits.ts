import { totalmem } from "node:os";
import type { LayerShare } from "./layers.ts";

/** Limits of one command, so that what it exhausts is its own. */
export interface CommandLimits {
  /** Maximum number of processes and threads. The kernel does not apply it to root. */
  readonly maxProcesses: number;
  /** Maximum number of open files of one process. */
  readonly maxOpenFiles: number;
  /** Maximum size of a file that it writes. */
  readonly maxFileBytes: number;
  /** Maximum memory of all its processes. */
  readonly maxMemoryBytes: number;
}

/** The limits of each command; a quarter of the memory of this machine or container is left to the service and to others. */
export const commandLimits: CommandLimits = {
  maxProcesses: 1_024,
  maxOpenFiles: 16_384,
  maxFileBytes: 4 * 1024 ** 3,
  maxMemoryBytes: Math.floor(Math.min(totalmem(), process.constrainedMemory() || Infinity) * 0.75),
};

/**
 * Returns the share that sets the limits inside the sandbox, where only the command's own processes are counted. It also makes
 * the command the first process that the kernel ends when memory runs out, before the service. The kernel limits what a process
 * reserves, and sanitizers and similar tools reserve far more than they use, so the service watches what all of them use, and what
 * is left on the disks of these directories.
 */
export function limitsShare(
  { maxProcesses, maxOpenFiles, maxFileBytes, maxMemoryBytes }: CommandLimits,
  directories: readonly string[],
): LayerShare {
  const set = [
    "ulimit -c 0",
    `ulimit -n ${maxOpenFiles}`,
    // In blocks of 512 bytes.
    `ulimit -f ${maxFileBytes / 512}`,
    // The letter differs between shells.
    `ulimit -u ${maxProcesses} || ulimit -p ${maxProcesses}`,
    "echo 1000 > /proc/self/oom_score_adj",
  ];
  // A limit that is already lower stays.
  return {
    layers: ["limits"],
    usage: { maxMemoryBytes, maxProcesses, directories },
    script: `{ ${set.join("; ")}; } 2>/dev/null`,
  };
}
