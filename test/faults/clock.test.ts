import { execFileSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 10 : 1;

test("F9 replicas whose clocks are years apart, or jump, serve as one", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-clock-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const clocks = [join(folder, "a"), join(folder, "b")] as const;
  const set = (clock: string, offset: string) => writeFile(clock, `${offset}\n`);
  await set(clocks[0], "+10y");
  await set(clocks[1], "-10y");
  const env = clocks.map((FAKETIME_TIMESTAMP_FILE) => ({ ...fakeTime(), FAKETIME_TIMESTAMP_FILE }));
  const system = await startSystem({ leaseMs: 6_000, env });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  const jumps = ["+10y", "+1h", "-1h", "+0", "-10y"];
  for (const offset of Array.from({ length: rounds }, () => jumps).flat()) {
    await set(clocks[0], offset);
    await set(
      clocks[1],
      offset.replace(/^[+-]/, (sign) => (sign === "+" ? "-" : "+")),
    );
    await delay(1_000);
  }
  stop.abort();
  const parts = await working;
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  const fault = "F9 clocks of two of three replicas jump";
  await conclude(system, hosts, { fault, faults: rounds * jumps.length * 2, seen: endsOf(parts) });
});

/** Builds the environment in which a process has another wall clock, but the same timers. */
function fakeTime(): Record<string, string> {
  const library = (() => {
    try {
      return execFileSync("faketime", ["-f", "+0s", "printenv", "LD_PRELOAD"], { encoding: "utf8" }).trim();
    } catch (cause) {
      throw new Error("apt-get install -y faketime", { cause });
    }
  })();
  return { LD_PRELOAD: library, FAKETIME_DONT_FAKE_MONOTONIC: "1", FAKETIME_NO_CACHE: "1" };
}
