import { setTimeout as delay } from "node:timers/promises";
import { expect, vi } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { violations } from "./checker.ts";
import type { Hosts } from "./hosts.ts";
import { type Count, report } from "./report.ts";
import type { System } from "./system.ts";

/** Checks at the end that there is no violation and no leftover process; adds a row to the table. */
export async function conclude(
  system: System,
  hosts: Hosts,
  about: Pick<Count, "fault" | "faults" | "seen">,
): Promise<void> {
  await vi.waitUntil(async () => (await system.children()).length === 0, { timeout: 60_000 });
  const history = await hosts.finish();
  const found = violations(history);
  report({
    ...about,
    calls: history.calls.length,
    answers: history.answers.length,
    runs: history.ledger.filter(({ word }) => word === "start").length,
    violations: found.length,
  });
  expect(found).toEqual([]);
}

/** Waits until something holds, for a time at most; returns whether it does. */
export async function holdsWithin(ms: number, holds: () => boolean | Promise<boolean>): Promise<boolean> {
  const end = performance.now() + ms;
  while (!(await holds())) {
    if (performance.now() > end) return false;
    await delay(50);
  }
  return true;
}

/** Repeats with another call where a host on a slow machine has abandoned the replica before the step at which it is struck. */
export async function untilStruck(attempt: (count: number) => Promise<ToolPart | undefined>): Promise<ToolPart> {
  for (let count = 1; count <= 20; count += 1) {
    const part = await attempt(count);
    if (part) return part;
  }
  throw new Error("none of twenty calls reached the step at which the replica is struck");
}
