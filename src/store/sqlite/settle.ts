import type { Settlement, SettleResult } from "../../approval/ports.ts";
import type { SqliteAsks } from "./asks.ts";
import type { SqliteAudit } from "./audit.ts";
import type { SqliteCalls } from "./calls.ts";
import type { Step } from "./commit.ts";
import type { SqliteGrants } from "./grants.ts";
import type { OpenCallTable } from "./open-calls.ts";
import type { SqliteSessions } from "./sessions.ts";

/**
 * settle_ask: decides the race for an ask and writes all that follows from the winner. An answer that comes after the
 * deadline, and an expiry before it, lose without a winner: the caller then expires the ask, or waits.
 */
export function createSqliteSettle(options: {
  sessions: SqliteSessions;
  openCalls: OpenCallTable;
  calls: SqliteCalls;
  asks: SqliteAsks;
  grants: SqliteGrants;
  audit: SqliteAudit;
}) {
  const { sessions, openCalls, calls, asks, grants, audit } = options;

  function isUnchanged(settlement: Settlement): boolean {
    const sameCalls = settlement.calls.every(({ ref, version }) => openCalls.get(ref)?.version === version);
    const { asksVersion } = sessions.versions(settlement.root);
    if ((settlement.asksVersion ?? asksVersion) !== asksVersion) return false;
    return sameCalls && settlement.settled.every(({ permissionId }) => isOpen(permissionId));
  }

  function isOpen(id: string): boolean {
    const ask = asks.state(id);
    return ask !== undefined && ask.settled === undefined;
  }

  return (step: Step, settlement: Settlement): SettleResult => {
    const ask = asks.state(settlement.askId);
    if (ask?.settled !== undefined) return { result: "lost", settled: ask.settled };
    const due = ask !== undefined && ask.expires <= step.now;
    if (ask === undefined || due !== settlement.expired) return { result: "lost" };
    if (!isUnchanged(settlement)) return { result: "retry" };

    for (const settled of settlement.settled) asks.settle(step, settled);
    for (const grant of settlement.grants) grants.save(step, grant);
    for (const { ref, part } of settlement.calls) {
      const call = openCalls.get(ref);
      if (call === undefined) continue;
      if (part === undefined) calls.raiseVersion(step, call, { settled: step.now });
      else if (part.state.case === "pending") calls.edit(step, call, part);
      else calls.end(step, call, part);
    }
    audit.append(step, settlement.root, settlement.decisions);
    return { result: "won" };
  };
}
