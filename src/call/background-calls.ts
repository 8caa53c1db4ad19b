import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { startBackground } from "./accept.ts";
import { cancelCall } from "./cancel.ts";
import type { Engine } from "./engine.ts";
import { waitForEnd } from "./follow.ts";
import type { CallRecord } from "./ports.ts";
import { runKeyOf } from "./running.ts";

/** Returns the calls of an engine that go on after the call that made them has ended, for tools of the service. */
export function backgroundCallsOf(engine: Engine) {
  const { runs, sessions, store } = engine;

  async function recordOf({ sessionId, callId }: Pick<CallRef, "sessionId" | "callId">): Promise<CallRecord> {
    const record = await store.getCall(sessionId, callId);
    if (record) return record;
    throw new Error(`call ${callId} of session ${sessionId} is gone`);
  }

  return {
    async start(
      parent: Pick<CallRef, "sessionId" | "callId">,
      call: { tool: string; input: JsonObject },
    ): Promise<string> {
      const [record, opened] = [await recordOf(parent), await sessions.load(parent.sessionId)];
      if (!opened) throw new Error(`session ${parent.sessionId} is gone`);
      return (await startBackground(engine, { record, opened }, call)).callId;
    },
    async find({ sessionId, callId }: Pick<CallRef, "sessionId" | "callId">): Promise<ToolPart | undefined> {
      const record = await store.getCall(sessionId, callId);
      return record?.part.background && !record.expired ? record.part : undefined;
    },
    async wait(call: Pick<CallRef, "sessionId" | "callId">, ms: number, signal: AbortSignal): Promise<ToolPart> {
      return (await waitForEnd(engine, await recordOf(call), ms, signal)).part;
    },
    shown: (call: Pick<CallRef, "sessionId" | "callId">) =>
      runs.get(runKeyOf({ root: "", ...call }))?.call.progress?.shown ?? {},
    async lastTool(sessionId: string): Promise<string | undefined> {
      const session = await store.getSession(sessionId);
      const from = Math.max(0, Number(session?.lastSeq ?? 0n) - lookBack);
      const { events } = await store.readLog(sessionId, from, lookBackBytes);
      const last = events.findLast(({ event }) => event.case === "part");
      return last?.event.case === "part" ? last.event.value.tool : undefined;
    },
    async openCalls(sessionId: string): Promise<ToolPart[]> {
      return (await store.listCalls({ sessionId, open: true, limit: 10_000 })).map(({ part }) => part);
    },
    async cancel(call: Pick<CallRef, "sessionId" | "callId">, reason: string): Promise<ToolPart> {
      return await cancelCall(engine, (await recordOf(call)).ref, reason);
    },
  };
}

/** Events at the end of a session's log in which its last call is looked for. */
const lookBack = 100;
const lookBackBytes = 262_144;
