import { expect, vi } from "vitest";
import { violations } from "./checker.ts";
import type { Hosts } from "./hosts.ts";
import { type Count, report } from "./report.ts";
import type { System } from "./system.ts";

/** Checks, when all is over, that no promise was broken and nothing is left running; adds a line to the table. */
export async function conclude(
  system: System,
  hosts: Hosts,
  about: Pick<Count, "fault" | "faults" | "seen">,
): Promise<void> {
  await vi.waitUntil(async () => (await system.children()).length === 0, { timeout: 20_000, interval: 50 });
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
