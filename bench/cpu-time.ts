import { readdirSync, readFileSync } from "node:fs";

/** Figures of the kernel about a process. */
interface Process {
  parent: number;
  /** Its CPU time and that of its children that have ended, in µs. */
  cpuMicros: number;
}

/** The CPU time that a process and its children have used, in µs; Linux counts it in steps of 10 ms. */
export function cpuTime(pid: number): number {
  const processes = readProcesses();
  const children = Map.groupBy(processes.keys(), (id) => processes.get(id)?.parent ?? 0);
  const sumOf = (id: number): number =>
    (children.get(id) ?? []).reduce((sum, child) => sum + sumOf(child), processes.get(id)?.cpuMicros ?? 0);
  return sumOf(pid);
}

function readProcesses(): Map<number, Process> {
  const processes = new Map<number, Process>();
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = readProc(`${name}/stat`);
    // Behind the name, which may hold anything, field 4 of proc_pid_stat(5) is the second; 14 to 17 are user and system time,
    // and the same of children that have ended.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
    processes.set(Number(name), { parent: Number(fields[1]), cpuMicros: ticks * 10_000 });
  }
  return processes;
}

/** A file of proc(5); empty if its process has just ended. */
function readProc(path: string): string {
  try {
    return readFileSync(`/proc/${path}`, "utf8");
  } catch {
    return "";
  }
}
