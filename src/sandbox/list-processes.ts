import { readdirSync, readFileSync } from "node:fs";

/** A process of this machine. */
export interface ListedProcess {
  readonly pid: number;
  readonly parent: number;
  readonly residentBytes: number;
  /** Time in the kernel, its own and that of children which have ended. */
  readonly kernelTicks: number;
}

/** Lists the processes of this machine. */
export function listProcesses(): ListedProcess[] {
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? processOf(Number(name)) : []));
}

/** Reads a process; empty if it has ended. */
function processOf(pid: number): ListedProcess[] {
  const stat = readText(`/proc/${pid}/stat`);
  if (stat === "") return [];
  // The name, in parentheses, may contain anything.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const field = (number: number) => Number(fields[number]);
  return [{ pid, parent: field(1), residentBytes: field(21) * pageBytes, kernelTicks: field(12) + field(14) }];
}

/** Returns the memory of a process, of shared pages only its share; where that is not readable, without shared pages of files. */
export function proportionalBytes({ pid }: ListedProcess): number {
  const [, kib] = /^Pss: +(\d+) kB/m.exec(readText(`/proc/${pid}/smaps_rollup`)) ?? [];
  if (kib !== undefined) return Number(kib) * 1024;
  const [, resident = 0, shared = 0] = readText(`/proc/${pid}/statm`).split(" ").map(Number);
  return (resident - shared) * pageBytes;
}

/** Size of a page on x64, and on most systems with arm64. */
const pageBytes = 4_096;

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
