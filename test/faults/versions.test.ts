import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { entryOf, releasesBefore } from "./releases.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

/** The last release whose replicas may share a store with those of this version. */
const [previous] = releasesBefore("HEAD");

test.runIf(previous !== undefined)(
  "replicas of the version before and of this one serve one Redis, and take over each other's calls",
  async () => {
    const old = await entryOf(previous ?? "");
    const system = await startSystem({ count: 4, entries: [old, undefined, old, undefined] });
    const hosts = createHosts(system);
    const stop = new AbortController();
    const working = work(hosts, 6, stop.signal);
    let faults = 0;
    for (let round = 0; round < (isLong ? 10 : 1); round += 1) {
      for (const replica of system.replicas) {
        await delay(700);
        await (faults % 3 === 2 ? replica.stop() : replica.kill());
        await replica.start();
        faults += 1;
      }
    }
    stop.abort();
    const parts = await working;
    expect(parts.filter(({ state }) => state.case === "completed").length).toBeGreaterThan(parts.length / 2);
    await conclude(system, hosts, {
      fault: "two versions of replicas, killed and stopped",
      faults,
      seen: endsOf(parts),
    });
  },
);
