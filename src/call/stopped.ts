import { create } from "@bufbuild/protobuf";
import type { StopRecord } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { RecordTable } from "../core/record-table.ts";
import { CallEnd } from "./ends.ts";
import type { Stops } from "./engine.ts";
import type { KnownSession } from "./sessions.ts";

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
export interface Stoppable {
  agent: string;
  /** Its session, and the ancestors of that. */
  sessionIds: readonly string[];
}

/** True if a stop holds for a call. */
export function isStoppedBy({ target }: StopRecord, { agent, sessionIds }: Stoppable): boolean {
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
