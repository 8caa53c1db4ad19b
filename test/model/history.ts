import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { GrantScope, PermissionOutcome, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { callOf } from "../../src/call/log.ts";
import { inputOf, isTerminal } from "../../src/call/state.ts";

/** Returns the broken promises in the whole log of a session at rest; empty if it keeps all. */
export function brokenPromises(log: readonly SessionEvent[]): string[] {
  const broken: string[] = [];
  const states = new Map<string, string[]>();
  const asks = new Map<string, string[]>();
  const last = new Map<string, SessionEvent>();
  const endedParents = new Set<string>();
  const add = (lists: Map<string, string[]>, id: string, word: string) =>
    lists.set(id, [...(lists.get(id) ?? []), word]);

  for (const [index, event] of log.entries()) {
    if (event.seq !== BigInt(index + 1)) broken.push(`number ${event.seq} stands where ${index + 1} belongs`);
    const { case: kind, value } = event.event;
    if (kind === "part" && value.parentCallId !== "" && endedParents.has(value.parentCallId))
      broken.push(`call ${value.callId} was ${value.state.case} after the end of the call that made it`);
    if (kind === "part" && isTerminal(value)) endedParents.add(value.callId);
    if (kind === "part") add(states, value.callId, value.state.case ?? "nothing");
    if (kind === "permissionAsked") add(asks, value.id, "asked");
    if (kind === "permissionSettled") add(asks, value.permissionId, "settled");
    const callId = callOf(event);
    if (callId !== undefined) last.set(callId, event);
  }
  for (const [id, path] of states)
    if (!/^pending (running completed|running error|error)$/.test(path.join(" ")))
      broken.push(`call ${id} went ${path.join(", ")}`);
  for (const [id, path] of asks)
    if (path.join(" ") !== "asked settled") broken.push(`ask ${id} was ${path.join(", ")}`);
  for (const [id, { event }] of last)
    if (event.case !== "part" || !isTerminal(event.value)) broken.push(`call ${id} has a ${event.case} after its end`);
  return broken;
}

/**
 * Returns the calls of `ask` that a root session's log shows as started without an earlier approval or living grant. Calls
 * that wider grants cover are skipped, since those grants can be in another log.
 */
export function unapproved(log: readonly SessionEvent[], wideKeys: ReadonlySet<unknown>): string[] {
  const grants = new Map<string, unknown>();
  const approved = new Set<string>();
  const started: string[] = [];
  for (const { sessionId, event } of log) {
    if (event.case === "granted") grants.set(event.value.id, event.value.match?.match.value);
    if (event.case === "revoked") grants.delete(event.value.id);
    if (event.case === "permissionSettled" && event.value.sessionId === sessionId && isApproved(event.value))
      approved.add(event.value.callId);
    if (event.case !== "part" || event.value.tool !== "ask" || event.value.state.case !== "running") continue;
    const { key } = inputOf(event.value);
    const isCovered = wideKeys.has(key) || [...grants.values()].includes(key);
    if (!approved.has(event.value.callId) && !isCovered) started.push(event.value.callId);
  }
  return started;
}

/** Returns the keys that project grants of a log cover. */
export function wideKeysOf(log: readonly SessionEvent[]): unknown[] {
  return log.flatMap(({ event }) =>
    event.case === "granted" && event.value.scope !== GrantScope.SESSION ? event.value.match?.match.value : [],
  );
}

/** True for an approval of the ask itself. An ask settled by another call's grant is allowed by that grant. */
const isApproved = ({ outcome, settledWith }: PermissionSettled) =>
  settledWith === "" && (outcome === PermissionOutcome.ONCE || outcome === PermissionOutcome.ALWAYS);
