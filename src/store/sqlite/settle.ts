import type { SettledCall, Settlement, SettleResult } from "../../approval/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { endCallRow, settleCallRow, startSettledCall } from "./call-rows.ts";
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
  if (!isCurrent(tables, step, settlement)) return { result: "retry" };

  for (const settled of settlement.settled) asks.settle(step, settled);
  for (const grant of settlement.grants) grants.save(step, grant);
  const unclaimed: CallRef[] = [];
  for (const { ref, part, start } of settlement.calls) {
    const call = openCalls.get(ref);
    if (call === undefined) continue;
    if (start) startSettledCall(tables, step, call, start);
    else if (part && part.state.case !== "pending") endCallRow(tables, step, call, part);
    else if (settleCallRow(tables, step, call, part)) unclaimed.push(ref);
  }
  audit.append(step, settlement.root, settlement.decisions);
  return { result: "won", ...(unclaimed.length > 0 && { unclaimed }) };
}

/** Compares every record that the settlement was computed from. */
function isCurrent(tables: SqliteTables, step: Step, settlement: Settlement): boolean {
  const { sessions, openCalls, asks } = tables;
  const { asksVersion } = sessions.versions(settlement.root);
  if ((settlement.asksVersion ?? asksVersion) !== asksVersion) return false;
  if (!settlement.calls.every(({ ref, version }) => openCalls.get(ref)?.version === version)) return false;
  if (!settlement.calls.every((each) => each.start === undefined || mayStart(tables, step, settlement, each)))
    return false;
  return settlement.settled.every(({ permissionId }) => {
    const ask = asks.state(permissionId);
    return ask !== undefined && ask.settled === undefined;
  });
}

/** Checks that a call has no owner, was not started, and waits for no other ask than those of the settlement. */
function mayStart(
  { openCalls, asks }: SqliteTables,
  step: Step,
  { settled }: Settlement,
  { ref }: SettledCall,
): boolean {
  const call = openCalls.get(ref);
  if (call === undefined || call.started || (call.owner !== "" && call.leaseUntil > step.now)) return false;
  const answered = new Set(settled.map(({ permissionId }) => permissionId));
  return asks.openOfCall(call.ordinal).every((id) => answered.has(id));
}
