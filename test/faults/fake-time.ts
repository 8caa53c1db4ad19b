import { execFileSync } from "node:child_process";

/** Builds the environment in which a process has another wall clock, but the same timers; `FAKETIME*` says which. */
export function fakeTime(): Record<string, string> {
  const library = (() => {
    try {
      return execFileSync("faketime", ["-f", "+0s", "printenv", "LD_PRELOAD"], { encoding: "utf8" }).trim();
    } catch (cause) {
      throw new Error("apt-get install -y faketime", { cause });
    }
  })();
  return { LD_PRELOAD: library, FAKETIME_DONT_FAKE_MONOTONIC: "1", FAKETIME_NO_CACHE: "1" };
}
