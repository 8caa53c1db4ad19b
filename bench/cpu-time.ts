import { readdirSync, readFileSync } from "node:fs";

/** The CPU time that a process and its children have used, in µs; Linux counts it in steps of 10 ms. */
export function cpuTime(pid: number): number {
  // Behind the name, which may hold anything, field 14 of proc_pid_stat(5) is the 11th: user and system time, and the
  // same of children that have ended.
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const ticks = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 15)
    .reduce((sum, field) => sum + Number(field), 0);
  return childrenOf(pid).reduce((sum, child) => sum + cpuTime(child), ticks * 10_000);
}

function childrenOf(pid: number): number[] {
  return readdirSync(`/proc/${pid}/task`)
    .flatMap((thread) => readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8").trim().split(" "))
    .filter((child) => child !== "")
    .map(Number);
}
