import { readdirSync, readFileSync } from "node:fs";

/** The CPU time that a process and its children have used, in µs; Linux counts it in steps of 10 ms. */
export function cpuTime(pid: number): number {
  // Behind the name, which may hold anything, field 14 of proc_pid_stat(5) is the 11th: user and system time, and the
  // same of children that have ended.
  const stat = readProc(`${pid}/stat`);
  const ticks = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 15)
    .reduce((sum, field) => sum + Number(field), 0);
  return childrenOf(pid).reduce((sum, child) => sum + cpuTime(child), ticks * 10_000);
}

function childrenOf(pid: number): number[] {
  return threadsOf(pid)
    .flatMap((thread) => readProc(`${pid}/task/${thread}/children`).trim().split(" "))
    .filter((child) => child !== "")
    .map(Number);
}

function threadsOf(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`);
  } catch {
    return [];
  }
}

/** A file of proc(5); empty if its process or thread has just ended. */
function readProc(path: string): string {
  try {
    return readFileSync(`/proc/${path}`, "utf8");
  } catch {
    return "";
  }
}
