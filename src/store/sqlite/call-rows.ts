import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { HostStart } from "../../call/ports.ts";
import { backgroundEndOf, checkEnded } from "../parts.ts";
import type { Step } from "./commit.ts";
import type { OpenCallRow } from "./open-calls.ts";
import { writePart } from "./parts.ts";
import type { SqliteTables } from "./tables.ts";

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

/** Makes the change of a settled ask: recovery checks a delegated call again when its approval was not collected in time. */
export function settledAt({ owner, collectMs }: OpenCallRow, now: number): Partial<OpenCallRow> {
  return owner === "" && collectMs > 0 ? { settled: now, leaseUntil: now + collectMs } : { settled: now };
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
  callSql.end.run(call.version + 1, step.now, snapshot, call.ordinal);
  openCalls.remove(step, call.ref);
  return part;
}

/** Writes the pending part with an edited input. */
export function editCallRow(tables: Tables, step: Step, call: OpenCallRow, part: ToolPart): void {
  if (call.started) throw new Error(`call ${call.ref.callId} is running: its input cannot be edited`);
  const { snapshot } = writePart(step, tables.log, call.ref.sessionId, part);
  tables.callSql.setSnapshot.run(snapshot, call.ordinal);
  raiseCallVersion(tables, step, call, settledAt(call, step.now));
}

/** Compares the rules version of the call's tree with the one at which grants were consulted, if they were. */
export function hasRulesVersion({ sessions }: SqliteTables, { ref }: OpenCallRow, seen: number | undefined): boolean {
  return seen === undefined || seen === sessions.versions(ref.root).rulesVersion;
}
