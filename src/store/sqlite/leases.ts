import type { CallRecord, LeaseStore, OrphanedCall } from "../../call/ports.ts";
import { raiseCallVersion } from "./call-rows.ts";
import type { Step } from "./commit.ts";
import type { SqliteTables } from "./tables.ts";

/** claim_call: takes over a call without a live lease whose body may be entered once more. */
export function applyClaimCall(
  tables: SqliteTables,
  step: Step,
  ...[ref, owner, leaseMs, maxAttempts = 1]: Parameters<LeaseStore["claimCall"]>
): CallRecord | undefined {
  const { openCalls, records, callSql } = tables;
  const call = openCalls.get(ref);
  if (call === undefined || call.leaseUntil > step.now) return undefined;
  if ((records.get(ref.sessionId, ref.callId)?.attempts ?? 0) >= maxAttempts) return undefined;
  const epoch = call.epoch + 1;
  callSql.claim.run(epoch, call.ordinal);
  raiseCallVersion(tables, step, call, { epoch, owner, started: false, leaseUntil: step.now + leaseMs });
  return records.get(ref.sessionId, ref.callId);
}

/** Lists open calls without a live lease, the longest orphaned first. */
export function listOrphans({ openCalls, records }: SqliteTables, now: number, limit: number): OrphanedCall[] {
  return [...openCalls.all()]
    .filter((call) => call.leaseUntil <= now)
    .map((call) => ({ call, since: Math.max(call.leaseUntil, call.settled) }))
    .sort((one, other) => one.since - other.since)
    .slice(0, limit)
    .flatMap(({ call: { ref, ordinal, started }, since }) => {
      const record = records.get(ref.sessionId, ref.callId);
      return record === undefined ? [] : [{ record, started, openAsks: records.openAskCount(ordinal), since }];
    });
}
