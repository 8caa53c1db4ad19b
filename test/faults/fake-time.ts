import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, rmSync } from "node:fs";

/** Builds the environment in which a process has another wall clock, but the same timers; `FAKETIME*` says which. */
export function fakeTime(): Record<string, string> {
  removeLeftovers();
  const library = (() => {
    try {
      return execFileSync("faketime", ["-f", "+0s", "printenv", "LD_PRELOAD"], { encoding: "utf8" }).trim();
    } catch (cause) {
      throw new Error("apt-get install -y faketime", { cause });
    }
  })();
  return { LD_PRELOAD: library, FAKETIME_DONT_FAKE_MONOTONIC: "1", FAKETIME_NO_CACHE: "1" };
}

/** Removes what processes left that were killed: another one with the same number could not start. */
function removeLeftovers(): void {
  for (const name of readdirSync("/dev/shm")) {
    const [, pid] = /^(?:sem\.)?faketime_(?:shm|sem)_(\d+)$/.exec(name) ?? [];
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) rmSync(`/dev/shm/${name}`, { force: true });
  }
}
