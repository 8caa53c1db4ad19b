import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type StopRecord, StopRecordSchema, type StopTarget } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import {
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { serviceRoot } from "../core/ids.ts";
import type { Principal } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { noSuchSession, RequestError } from "../core/request-error.ts";
import { within } from "../core/within.ts";
import { cancelCall } from "./cancel.ts";
import { CallEnd } from "./ends.ts";
import type { Engine, Stops } from "./engine.ts";
import { eachOpenCall } from "./follow.ts";
import type { KnownSession } from "./sessions.ts";

/** Time that a start which was judged by older stops needs to reach the store. */
const underWayMs = 400;
/** Time that a stop waits for the calls that it cancels. */
const maxEndingMs = 2_000;
const pageSize = 100;

/** Lets no call of the target start from now on, at any replica, and ends those that are open; returns how many. */
export async function stopCalls(
  engine: Engine,
  principal: Principal,
  { target, reason }: { target: StopTarget; reason: string },
) {
  const { permissions, stops, store } = engine;
  const id = idOf(target);
  const root = await rootOf(engine, target);
  const before = stops.current().find((stop) => stop.id === id);
  const stop = before ?? create(StopRecordSchema, { id, target, by: principal.id, time: store.now(), reason });
  if (!before) {
    await stops.put(stop);
    await permissions.note(root ?? serviceRoot, [recordOf(stop, DecisionKind.STOPPED, principal)]);
    // Until then another replica may start calls by what it read before.
    if (store.isShared) await delay(maxStopsAgeMs + underWayMs);
  }
  const isMeant = (agent: string, sessionIds: readonly string[]) => isStoppedBy(stop, { agent, sessionIds });
  const rejected = await permissions.rejectAll(principal, {
    ...{ root, agent: "", message: `${stopText(stop)}. ${adviceText}` },
    sees: async ({ agent, ancestry }) => isMeant(agent, ancestry),
  });
  const open = await openCallsOf(engine, stop, root);
  const ends = open.map((ref) => endStopped(engine, ref, stop));
  await within(maxEndingMs, Promise.all(ends), () => undefined);
  return { stop, rejected: rejected.length, cancelled: open.length };
}

/** Lets calls of a target start again; returns the stop that held, if there was one. */
export async function resumeCalls(
  engine: Engine,
  principal: Principal,
  target: StopTarget,
): Promise<StopRecord | undefined> {
  const { permissions, stops } = engine;
  await stops.refresh();
  const held = stops.current().find(({ id }) => id === idOf(target));
  if (held === undefined) return undefined;
  if (!principal.roles.has("admin") && !principal.lineage.includes(held.by) && principal.id !== held.by) {
    throw new RequestError(
      ErrorReason.ROLE_MISSING,
      `${stopText(held)}; the token "${principal.id}" may not resume it: use that of ${held.by}, or one with the role admin`,
      { rpc: "Resume", roles: "admin" },
    );
  }
  // Before the end of the stop, so that no call starts of which the audit does not say why.
  const root = await rootOf(engine, target).catch(() => undefined);
  await permissions.note(root ?? serviceRoot, [recordOf(held, DecisionKind.RESUMED, principal)]);
  return await stops.remove(held.id);
}

/** Reads the stops, and ends what runs here although one holds for it: another replica may have stopped it. */
export async function enforceStops(engine: Engine): Promise<void> {
  const { runs, stops } = engine;
  await stops.refresh();
  if (stops.current().length === 0) return;
  for (const { call } of runs.values()) {
    const stop = stopOf(engine, call.opened, call.record.part.agent);
    if (stop && !call.signal.aborted) void endStopped(engine, call.record.ref, stop);
  }
}

async function endStopped(engine: Engine, ref: CallRef, stop: StopRecord): Promise<void> {
  await cancelCall(engine, ref, `${stopText(stop)}. ${adviceText}`).catch((error: unknown) =>
    engine.log.warn("a call that was stopped could not be cancelled yet", { error, callId: ref.callId }),
  );
}

/** Lists the open calls for which a stop holds, in its tree or in all. */
async function openCallsOf({ sessions, store }: Engine, stop: StopRecord, root?: string): Promise<CallRef[]> {
  const found: CallRef[] = [];
  for (let before: string | undefined; ; ) {
    const page = await store.listSessions({ limit: pageSize, ...(root && { root }), ...(before && { before }) });
    for (const { id: sessionId } of page) {
      const known = await sessions.find(sessionId);
      const sessionIds = known ? [...known.ancestors, known.session].map(({ id }) => id) : [];
      for await (const { ref, part } of known ? eachOpenCall(store, sessionId) : [])
        if (isStoppedBy(stop, { agent: part.agent, sessionIds })) found.push(ref);
    }
    before = page.at(-1)?.id;
    if (page.length < pageSize) return found;
  }
}

/** Returns the root of the tree of a stopped session. */
async function rootOf({ sessions }: Engine, { target }: StopTarget): Promise<string | undefined> {
  if (target.case !== "sessionId") return undefined;
  const known = await sessions.find(target.value);
  if (!known) throw noSuchSession(target.value);
  return known.session.rootSessionId;
}

/** Returns the ID of the only stop that a target can have. */
function idOf({ target }: StopTarget): string {
  return target.case === "all" ? "all" : `${target.case} ${target.value}`;
}

function recordOf(stop: StopRecord, kind: DecisionKind, { id: by, identity }: Principal): DecisionRecord {
  const of = stop.target?.target;
  const about = {
    ...(of?.case === "agent" && { agent: of.value }),
    ...(of?.case === "sessionId" && { sessionId: of.value }),
  };
  const decision = stopDecision(stop, "*");
  const reason = stop.reason === "" ? decision.reason : `${decision.reason}: ${stop.reason}`;
  return create(DecisionRecordSchema, { ...about, kind, by, ...identity, decisions: [{ ...decision, reason }] });
}

/** Age up to which a replica starts calls by the stops that it has read. */
export const maxStopsAgeMs = 1_500;

/** Creates the stops over their table. Where replicas share it, what was read is valid for a while only. */
export function createStops(table: RecordTable<StopRecord>, isShared: boolean): Stops {
  let read = performance.now();
  return {
    ...table,
    async refresh() {
      const sent = performance.now();
      await table.refresh();
      read = sent;
    },
    isFresh: () => !isShared || performance.now() - read < maxStopsAgeMs,
  };
}

/** The stops of a replica that nothing stops. */
export const noStops: Stops = {
  current: () => [],
  refresh: async () => {},
  put: async () => {},
  remove: async () => undefined,
  isFresh: () => true,
};

/** The facts of a call by which a stop holds for it. */
interface Stoppable {
  agent: string;
  /** Its session, and the ancestors of that. */
  sessionIds: readonly string[];
}

/** True if a stop holds for a call. */
function isStoppedBy({ target }: StopRecord, { agent, sessionIds }: Stoppable): boolean {
  const of = target?.target;
  if (of?.case === "agent") return of.value === agent;
  return of?.case === "all" || (of?.case === "sessionId" && sessionIds.includes(of.value));
}

/** Returns the stop that holds for a call of an agent in a session. */
export function stopOf(
  { stops }: { stops: Pick<Stops, "current"> },
  { session, ancestors }: Partial<KnownSession>,
  agent: string,
): StopRecord | undefined {
  const held = stops.current();
  if (held.length === 0) return undefined;
  const sessionIds = [...(ancestors ?? []), ...(session ? [session] : [])].map(({ id }) => id);
  return held.find((stop) => isStoppedBy(stop, { agent, sessionIds }));
}

/** True if a call may start by the stops that this replica has read; otherwise its run reads them again and ends it. */
export function mayStart(engine: { stops: Stops }, session: KnownSession, agent: string): boolean {
  return engine.stops.isFresh() && stopOf(engine, session, agent) === undefined;
}

/** Throws the end of a call for which a stop holds. */
export function checkStopped(
  engine: { stops: Stops },
  session: KnownSession,
  part: { agent: string; tool: string },
): void {
  const stop = stopOf(engine, session, part.agent);
  if (!stop) return;
  throw new CallEnd(ToolErrorReason.DENIED, `Nothing was run: ${stopText(stop)}. ${adviceText}`, {
    decisions: [stopDecision(stop, part.tool)],
  });
}

/** The words for the model whose work a stop ends. */
export const adviceText = "Stop working now. A person has to resume it before any tool runs again.";

/** Says what a stop stops, and who made it. */
export function stopText({ by, target, time }: Pick<StopRecord, "by" | "target" | "time">): string {
  const { case: kind, value } = target?.target ?? {};
  const what = kind === "agent" ? `agent "${value}"` : kind === "sessionId" ? `session ${value}` : "every agent";
  return `${what} was stopped by ${by} at ${new Date(time).toISOString()}`;
}

/** Builds the decision of a stop about what it denies. */
export function stopDecision(stop: StopRecord, permission: string): PermissionDecision {
  return create(PermissionDecisionSchema, {
    ...{ permission, pattern: "*", action: PermissionAction.DENY, layer: PermissionLayer.ENGINE },
    ...{ reasonCode: PermissionReason.STOPPED, reason: stopText(stop) },
  });
}
