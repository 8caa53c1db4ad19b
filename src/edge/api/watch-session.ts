import { create } from "@bufbuild/protobuf";
import {
  type WatchSessionRequest,
  type WatchSessionResponse,
  WatchSessionResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { EdgeContext } from "./edge-context.ts";
import { createStoreMark } from "./store-mark.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Streams the events of a session until the client leaves. */
export async function* watchSessionRpc(
  { calls, store }: Pick<ToolServiceDomain, "calls" | "store">,
  { sessionId, afterSeq, callId, snapshot }: WatchSessionRequest,
  { principal, signal, heartbeatMs }: EdgeContext,
): AsyncGenerator<WatchSessionResponse> {
  const storeMark = createStoreMark(store.storeIdOf(await calls.rootOf(principal, sessionId)));
  // A number above the largest safe integer is beyond the end of every log, also after it is rounded.
  const watch = { sessionId, afterSeq: Number(afterSeq), snapshot, callId: callId || undefined, heartbeatMs };
  for await (const { event, lastSeq, snapshotEnd = false } of calls.watch(principal, watch, signal)) {
    yield create(WatchSessionResponseSchema, {
      ...(event && { event }),
      lastSeq: BigInt(lastSeq),
      snapshotEnd,
      storeId: storeMark(),
    });
  }
}
