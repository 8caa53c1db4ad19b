import { appendFileSync, existsSync, mkdirSync, rmdirSync, writeFileSync } from "node:fs";
import { totalmem } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { readText } from "../core/read-files.ts";
import type { LayerShare } from "./layers.ts";

/** Control groups (cgroup v2) of commands, below the group of this process. Their limits hold for root, too. */
export interface ControlGroups {
  /** Returns the share that puts a command into a new group with these limits. */
  share(limits: GroupLimits): LayerShare;
}

/** Limits of all processes of a command, which the kernel enforces. */
export interface GroupLimits {
  readonly maxProcesses: number;
  readonly maxMemoryBytes: number;
}

/**
 * Opens the groups where the kernel has cgroup v2 and the group of this process was delegated to it, as systemd does for a unit with
 * `Delegate=`: this process can write there and is the only one in it. Undefined elsewhere; then the service watches the use alone.
 * A group with limits for groups below it must have no process, so this one moves into a group below.
 */
export function openControlGroups(place: { mount?: string; list?: string } = {}): ControlGroups | undefined {
  const { mount = "/sys/fs/cgroup", list = "/proc/self/cgroup" } = place;
  const [, path] = /^0::(\/.+)$/m.exec(readText(list)) ?? [];
  if (path === undefined) return undefined;
  const own = join(mount, path);
  const controllers = wordsOf(join(own, "cgroup.controllers"));
  if (!["memory", "pids"].every((name) => controllers.includes(name))) return undefined;
  if (wordsOf(join(own, "cgroup.procs")).join() !== String(process.pid)) return undefined;
  try {
    const service = join(own, "service");
    if (!existsSync(service)) mkdirSync(service);
    moveTo(service, process.pid);
    writeFileSync(join(own, "cgroup.subtree_control"), "+memory +pids");
  } catch {
    return undefined;
  }
  let count = 0;
  return {
    share(limits) {
      count += 1;
      return groupShare(join(own, `command-${count}`), limits);
    },
  };
}

function groupShare(group: string, { maxProcesses, maxMemoryBytes }: GroupLimits): LayerShare {
  mkdirSync(group);
  writeFileSync(join(group, "pids.max"), String(maxProcesses));
  writeFileSync(join(group, "memory.max"), String(maxMemoryBytes));
  // All processes of the command end together, and none of them in part in the swap space.
  writeFileSync(join(group, "memory.oom.group"), "1");
  writeOptional(join(group, "memory.swap.max"), "0");
  return {
    layers: ["cgroup"],
    // The command has not started: below the first process inside there is only the shell that waits.
    check(pid) {
      try {
        for (const each of [pid, ...wordsOf(`/proc/${pid}/task/${pid}/children`).map(Number)]) moveTo(group, each);
        return undefined;
      } catch (error) {
        return `nothing was run, since its control group cannot be entered: ${String(error)}`;
      }
    },
    exceeded() {
      const [, kills = 0] = /^oom_kill (\d+)$/m.exec(readText(join(group, "memory.events"))) ?? [];
      if (Number(kills) === 0) return undefined;
      return `its processes took more than ${Math.round(maxMemoryBytes / 1024 ** 2)} MiB of memory; the operator can raise memory_max under [sandbox]`;
    },
    async release() {
      writeOptional(join(group, "cgroup.kill"), "1");
      for (let round = 0; round < maxRemovals && !removeGroup(group); round += 1) await delay(removalPauseMs);
    },
  };
}

const moveTo = (group: string, pid: number) => appendFileSync(join(group, "cgroup.procs"), `${pid}\n`);

/** Writes a file that not every kernel has. */
function writeOptional(path: string, text: string): void {
  if (existsSync(path)) writeFileSync(path, text);
}

/** A process that was killed leaves its group a moment later. */
const [maxRemovals, removalPauseMs] = [40, 25];

function removeGroup(group: string): boolean {
  try {
    rmdirSync(group);
    return true;
  } catch {
    return false;
  }
}

const wordsOf = (path: string) => readText(path).split(/\s+/).filter(Boolean);

/** Limits of one command, so that what it exhausts is its own. */
interface CommandLimits {
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
