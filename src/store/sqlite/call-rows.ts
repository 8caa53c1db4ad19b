import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { SettledStart } from "../../approval/ports.ts";
import type { HostStart } from "../../call/ports.ts";
import { sealed } from "../checksum.ts";
import { backgroundEndOf, checkEnded } from "../parts.ts";
import { type SqliteTables, writePart } from "./call-statements.ts";
import type { Step } from "./commit.ts";
import type { OpenCallRow } from "./open-calls.ts";

type Tables = Pick<SqliteTables, "callSql" | "openCalls" | "log" | "asks">;

/** Raises the version of a call, which invalidates whatever was computed from an earlier one. */
export function raiseCallVersion(
  { callSql, openCalls }: Pick<Tables, "callSql" | "openCalls">,
  step: Step,
  call: OpenCallRow,
  change: Partial<OpenCallRow> = {},
): void {
  const version = call.version + 1;
  callSql.setVersion.run(version, call.ordinal);
  openCalls.set(step, { ...call, ...change, version });
}

/** Stores the assignment of a delegated call that starts, and returns the end of its lease. */
export function startAtHost(
  { callSql }: Pick<Tables, "callSql">,
  step: Step,
  ordinal: number,
  { assignment, reportMs }: HostStart,
): Pick<OpenCallRow, "owner" | "leaseUntil"> {
  callSql.assign.run(assignment, ordinal);
  return { owner: "", leaseUntil: step.now + reportMs };
}

/**
 * Writes that asks of the call were settled, and the pending part if its input was edited. A call without an owner that waits
 * for no other ask becomes an orphan, a delegated one when its approval was not collected in time. Returns true if a replica has
 * to claim the call.
 */
export function settleCallRow(tables: Tables, step: Step, call: OpenCallRow, part?: ToolPart): boolean {
  if (part && call.started) throw new Error(`call ${call.ref.callId} is running: its input cannot be edited`);
  if (part) {
    const { snapshot } = writePart(step, tables.log, call.ref.sessionId, part);
    tables.callSql.setSnapshot.run(...sealed(snapshot), call.ordinal);
  }
  const isFree = call.owner === "" && tables.asks.openOfCall(call.ordinal).length === 0;
  const leaseUntil = isFree ? step.now + call.collectMs : call.leaseUntil;
  raiseCallVersion(tables, step, call, { settled: step.now, leaseUntil });
  return isFree && call.collectMs === 0;
}

/** Claims a call whose last ask was settled, and writes its start mark. */
export function startSettledCall(tables: Tables, step: Step, call: OpenCallRow, start: SettledStart): void {
  const { callSql, openCalls, log } = tables;
  const [version, epoch] = [call.version + 1, call.epoch + 1];
  callSql.claim.run(epoch, call.ordinal);
  const { snapshot } = writePart(step, log, call.ref.sessionId, start.part);
  callSql.start.run(version, ...sealed(snapshot), null, call.ordinal);
  const lease = { owner: start.owner, leaseUntil: step.now + start.leaseMs };
  openCalls.set(step, { ...call, ...lease, version, epoch, started: true, settled: step.now, queued: undefined });
}

/** Writes the terminal part, withdraws the call's open asks and closes the call. */
export function endCallRow(
  { callSql, openCalls, log, asks }: Tables,
  step: Step,
  call: OpenCallRow,
  ended: ToolPart,
  withdrawal = "The call ended.",
): ToolPart {
  checkEnded(ended);
  if (call.asked) asks.withdraw(step, call, withdrawal);
  const { part, snapshot } = writePart(step, log, call.ref.sessionId, ended);
  const end = backgroundEndOf(part);
  if (end) log.append(step, call.ref.sessionId, end);
  callSql.end.run(call.version + 1, step.now, ...sealed(snapshot), call.ordinal);
  openCalls.remove(step, call.ref);
  if (call.parent !== "") freeParent(openCalls, step, call);
  return part;
}

/** Makes a parked call an orphan when the last call that it waits for has ended. */
function freeParent(openCalls: Tables["openCalls"], step: Step, { ref, parent: callId }: OpenCallRow): void {
  const parent = openCalls.get({ ...ref, callId });
  if (parent?.owner !== "" || !parent.started || openCalls.descendants(parent.ref).length > 0) return;
  openCalls.set(step, { ...parent, leaseUntil: step.now });
}

/** Compares the rules version of the call's tree with the one at which grants were consulted, if they were. */
export function hasRulesVersion({ sessions }: SqliteTables, { ref }: OpenCallRow, seen: number | undefined): boolean {
  return seen === undefined || seen === sessions.versions(ref.root).rulesVersion;
}
