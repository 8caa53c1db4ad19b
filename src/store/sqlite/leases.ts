import type { CallRecord, LeaseStore, OrphanedCall, RemoteMark } from "../../call/ports.ts";
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
  if (call.remote && call.leaseUntil + call.remote.resumeMs > step.now) return undefined;
  if ((records.get(ref.sessionId, ref.callId)?.attempts ?? 0) >= maxAttempts) return undefined;
  const epoch = call.epoch + 1;
  callSql.claim.run(epoch, call.ordinal);
  raiseCallVersion(tables, step, call, {
    ...{ epoch, owner, started: false, leaseUntil: step.now + leaseMs },
    remote: undefined,
  });
  return records.get(ref.sessionId, ref.callId);
}

/** park_call: ends the lease of a started call that waits for open children, or is to be resumed at once. */
export function applyParkCall(
  tables: SqliteTables,
  step: Step,
  ...[fence, dueMs]: Parameters<LeaseStore["parkCall"]>
): boolean {
  const { openCalls } = tables;
  const call = openCalls.fenced(fence);
  if (!call?.started || (dueMs > 0 && openCalls.descendants(call.ref).length === 0)) return false;
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

/** adopt_call: takes over a started call whose worker has a higher connection, which is stored. */
export function applyAdoptCall(
  tables: SqliteTables,
  step: Step,
  ...[ref, mark, owner, leaseMs]: Parameters<LeaseStore["adoptCall"]>
): CallRecord | undefined {
  const { openCalls, records, callSql } = tables;
  const call = openCalls.get(ref);
  if (!call?.remote || !isSameRun(call.remote, mark) || mark.connection <= call.remote.connection) return undefined;
  const epoch = call.epoch + 1;
  callSql.adopt.run(epoch, JSON.stringify(mark), call.ordinal);
  raiseCallVersion(tables, step, call, { epoch, owner, leaseUntil: step.now + leaseMs, remote: mark });
  return records.get(ref.sessionId, ref.callId);
}

/** restart_call: takes back the start of a call whose body was not entered. */
export function applyRestartCall(
  tables: SqliteTables,
  step: Step,
  ...[ref, mark, queued]: Parameters<LeaseStore["restartCall"]>
): boolean {
  const { openCalls, callSql } = tables;
  const call = openCalls.get(ref);
  if (!call?.remote || !isSameRun(call.remote, mark) || mark.connection < call.remote.connection) return false;
  const epoch = call.epoch + 1;
  callSql.restart.run(epoch, queued.until, call.ordinal);
  const lease = { owner: "", leaseUntil: step.now };
  raiseCallVersion(tables, step, call, { epoch, started: false, ...lease, remote: undefined, queued });
  return true;
}

/** Compares a mark with the stored one, but for the connection. */
const isSameRun = (stored: RemoteMark, { assignment, instance, principal }: RemoteMark) =>
  stored.assignment === assignment && stored.instance === instance && stored.principal === principal;

/** Lists all orphaned calls, the longest orphaned first. */
export function listOrphans({ openCalls }: SqliteTables, now: number): OrphanedCall[] {
  return [...openCalls.all()]
    .filter((call) => call.leaseUntil <= now)
    .map(({ ref, started, collectMs, leaseUntil, settled, remote, queued }) => ({
      ...{ ref, started, delegated: collectMs > 0, since: Math.max(leaseUntil, settled) },
      ...(remote && { remote }),
      ...(queued && { queued }),
    }))
    .sort((one, other) => one.since - other.since);
}
