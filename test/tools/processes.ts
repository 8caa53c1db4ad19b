import { readdir, readFile } from "node:fs/promises";
import { vi } from "vitest";

/** Reports whether a process runs; a zombie does not. */
export async function isAlive(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  return stat !== "" && !/\) [ZX] /.test(stat);
}

/** Waits until a process has ended; the test's own timeout is the bound. */
export async function untilDead(pid: number): Promise<void> {
  await vi.waitUntil(async () => !(await isAlive(pid)), { timeout: 60_000, interval: 20 });
}

/** Kills a process of a list, which may have ended by itself since. */
export function killIfAlive(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!String(error).includes("ESRCH")) throw error;
  }
}

/** The processes whose first word begins so. */
export async function processesNamed(mark: string): Promise<number[]> {
  const all = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
  const words = await Promise.all(all.map((pid) => readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")));
  return all.filter((_, index) => words[index]?.startsWith(mark));
}
