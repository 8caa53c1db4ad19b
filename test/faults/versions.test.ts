import { execSync } from "node:child_process";
import { mkdtemp, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { releasesBefore } from "./releases.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

/** The last release; before the first one a commit. */
const previous = releasesBefore("HEAD")[0] ?? "eb0142ce";

/** Extracts a version from the history; returns its entry point. */
async function entryOf(commit: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-version-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const repository = join(import.meta.dirname, "../..");
  execSync(`git archive ${commit} src gen proto package.json | tar -x -C ${folder}`, { cwd: repository });
  await symlink(join(repository, "node_modules"), join(folder, "node_modules"));
  return join(folder, "src/main.ts");
}

test("replicas of the version before and of this one serve one Redis, and take over each other's calls", async () => {
  const old = await entryOf(previous);
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
  await conclude(system, hosts, { fault: "two versions of replicas, killed and stopped", faults, seen: endsOf(parts) });
});
