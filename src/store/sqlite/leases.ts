import type { CallRecord, LeaseStore, OrphanedCall } from "../../call/ports.ts";
import { raiseCallVersion } from "./call-rows.ts";
import type { Step } from "./commit.ts";
import type { SqliteTables } from "./tables.ts";

/** claim_call: takes over a call without an owner or a live lease whose body may be entered once more. */
export function applyClaimCall(
  tables: SqliteTables,
  step: Step,
  ...[ref, owner, leaseMs, maxAttempts = 1]: Parameters<LeaseStore["claimCall"]>
): CallRecord | undefined {
  const { openCalls, records, callSql } = tables;
  const call = openCalls.get(ref);
  if (call === undefined || (call.owner !== "" && call.leaseUntil > step.now)) return undefined;
  if ((records.get(ref.sessionId, ref.callId)?.attempts ?? 0) >= maxAttempts) return undefined;
  const epoch = call.epoch + 1;
  callSql.claim.run(epoch, call.ordinal);
  raiseCallVersion(tables, step, call, { epoch, owner, started: false, leaseUntil: step.now + leaseMs });
  return records.get(ref.sessionId, ref.callId);
}

/** park_call: ends the lease of a started call that waits for open children. */
export function applyParkCall(
  tables: SqliteTables,
  step: Step,
  ...[fence, dueMs]: Parameters<LeaseStore["parkCall"]>
): boolean {
  const { openCalls } = tables;
  const call = openCalls.fenced(fence);
  if (!call?.started || openCalls.descendants(call.ref).length === 0) return false;
  raiseCallVersion(tables, step, call, { owner: "", leaseUntil: step.now + dueMs });
  return true;
}

/** resume_call: takes over a started call without an owner or a live lease; its start mark stays. */
export function applyResumeCall(
  tables: SqliteTables,
  step: Step,
  ...[ref, owner, leaseMs]: Parameters<LeaseStore["resumeCall"]>
): CallRecord | undefined {
  const { openCalls, records, callSql } = tables;
  const call = openCalls.get(ref);
  if (!call?.started || (call.owner !== "" && call.leaseUntil > step.now)) return undefined;
  const epoch = call.epoch + 1;
  callSql.resume.run(epoch, call.ordinal);
  raiseCallVersion(tables, step, call, { epoch, owner, leaseUntil: step.now + leaseMs });
  return records.get(ref.sessionId, ref.callId);
}

/** Lists all orphaned calls, the longest orphaned first. */
export function listOrphans({ openCalls }: SqliteTables, now: number): OrphanedCall[] {
  return [...openCalls.all()]
    .filter((call) => call.leaseUntil <= now)
    .map(({ ref, started, collectMs, leaseUntil, settled }) => ({
      ...{ ref, started, delegated: collectMs > 0, since: Math.max(leaseUntil, settled) },
    }))
    .sort((one, other) => one.since - other.since);
}
