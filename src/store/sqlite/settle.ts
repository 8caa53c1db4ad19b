import type { Settlement, SettleResult } from "../../approval/ports.ts";
import { editCallRow, endCallRow, raiseCallVersion, settledAt } from "./call-rows.ts";
import type { Step } from "./commit.ts";
import type { SqliteTables } from "./tables.ts";

/**
 * settle_ask: decides the race for an ask and writes every change of the winner. An answer after the deadline, and an expiry
 * before it, lose without a winner: the caller then expires the ask, or waits.
 */
export function applySettlement(tables: SqliteTables, step: Step, settlement: Settlement): SettleResult {
  const { openCalls, asks, grants, audit } = tables;
  const ask = asks.state(settlement.askId);
  if (ask?.settled !== undefined) return { result: "lost", settled: ask.settled };
  const isDue = ask !== undefined && ask.expires <= step.now;
  if (ask === undefined || isDue !== settlement.expired) return { result: "lost" };
  if (!isCurrent(tables, settlement)) return { result: "retry" };

  for (const settled of settlement.settled) asks.settle(step, settled);
  for (const grant of settlement.grants) grants.save(step, grant);
  for (const { ref, part } of settlement.calls) {
    const call = openCalls.get(ref);
    if (call === undefined) continue;
    if (part === undefined) raiseCallVersion(tables, step, call, settledAt(call, step.now));
    else if (part.state.case === "pending") editCallRow(tables, step, call, part);
    else endCallRow(tables, step, call, part);
  }
  audit.append(step, settlement.root, settlement.decisions);
  return { result: "won" };
}

/** Compares every record that the settlement was computed from. */
function isCurrent({ sessions, openCalls, asks }: SqliteTables, settlement: Settlement): boolean {
  const { asksVersion } = sessions.versions(settlement.root);
  if ((settlement.asksVersion ?? asksVersion) !== asksVersion) return false;
  if (!settlement.calls.every(({ ref, version }) => openCalls.get(ref)?.version === version)) return false;
  return settlement.settled.every(({ permissionId }) => {
    const ask = asks.state(permissionId);
    return ask !== undefined && ask.settled === undefined;
  });
}
