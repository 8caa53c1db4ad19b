import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type ExecuteToolRequest,
  type ExecuteToolResponse,
  ExecuteToolResponseSchema,
  OnDisconnect,
  type ToolService,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Accepted } from "../../call/accept.ts";
import type { CallRecord } from "../../call/ports.ts";
import { isTerminal } from "../../call/state.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { RequestError } from "../../core/request-error.ts";
import type { EdgeContext } from "./edge-context.ts";
import { nextPageToken, pageAfter } from "./paging.ts";
import { callerOf, type ServiceFunctions } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

type CallFunctions = "callTool" | "executeTool" | "cancelTool" | "getToolPart" | "listToolParts";

/** Returns the functions of ToolService for calls that the service runs. */
export function callFunctions(domain: ToolServiceDomain): Pick<ServiceFunctions<typeof ToolService>, CallFunctions> {
  const { calls, store, asksOf } = domain;
  return {
    /** Accepts a call or attaches to it, and returns it when it ends or `wait_ms` is over. */
    async callTool(request, context) {
      const { record } = await calls.open(await callerOf(domain, context), request, context.trace);
      const stopWatching = cancelOnLeave(calls, record.ref, request.onDisconnect, context);
      try {
        // As of when the call was known: a failover since then has to be noticed by the client's next request.
        const storeId = store.storeIdOf(record.ref.root);
        const { ref, part } = await calls.wait(record, request.waitMs ?? 30_000, context.signal);
        const permissions = isTerminal(part) ? [] : await openPermissions(asksOf, { ref, part });
        return { part, permissions, lastSeq: part.revision, storeId };
      } finally {
        stopWatching();
      }
    },
    /** Accepts a call or attaches to it, and streams its events until it ends. */
    async *executeTool(request, context) {
      const call = await calls.open(await callerOf(domain, context), request, context.trace);
      yield* followCall(domain, call, request, context);
    },
    /** Cancels a call and returns it when its end is recorded. */
    async cancelTool({ sessionId, callId, message }, { principal }) {
      return { part: await calls.cancel(principal, sessionId, callId, message) };
    },
    /** Returns a call with its open permission requests. */
    async getToolPart({ sessionId, callId }, { principal }) {
      const { record } = await calls.getRecord(principal, sessionId, callId, "read");
      return { part: record.part, permissions: await openPermissions(asksOf, record) };
    },
    /** Returns a page of the calls of a session, in the order in which they were accepted. */
    async listToolParts(request, context) {
      const page = pageAfter(request, context);
      const records = await calls.list(context.principal, { sessionId: request.sessionId, ...page });
      const ids = records.map(({ ref }) => ref.callId);
      return { parts: records.map(({ part }) => part), nextPageToken: nextPageToken(ids, page) };
    },
  };
}

/** Streams the events of a call until it ends, and cancels it when the client leaves, if the request wants that. */
export async function* followCall(
  { calls, store }: Pick<ToolServiceDomain, "calls" | "store">,
  call: Pick<Accepted, "record">,
  request: Pick<ExecuteToolRequest, "onDisconnect" | "afterSeq">,
  context: Pick<EdgeContext, "principal" | "signal">,
): AsyncGenerator<ExecuteToolResponse> {
  const { signal } = context;
  const stopWatching = cancelOnLeave(calls, call.record.ref, request.onDisconnect, context);
  const storeMark = createStoreMark(store.storeIdOf(call.record.ref.root));
  try {
    for await (const { event, lastSeq } of calls.events(call, Number(request.afterSeq), signal)) {
      yield create(ExecuteToolResponseSchema, {
        ...(event && { event }),
        lastSeq: BigInt(lastSeq),
        storeId: storeMark(),
      });
    }
  } finally {
    stopWatching();
  }
}

/** Cancels the call when the client leaves, if the request wants that. The end of a drain does not count as leaving. */
function cancelOnLeave(
  calls: ToolServiceDomain["calls"],
  { sessionId, callId }: CallRef,
  onDisconnect: OnDisconnect,
  { principal, signal }: Pick<EdgeContext, "principal" | "signal">,
): () => void {
  if (onDisconnect !== OnDisconnect.CANCEL) return () => undefined;
  const leave = () => {
    if (signal.reason instanceof RequestError && signal.reason.reason === ErrorReason.DRAINING) return;
    // No client is left to report a failure to; the call's own deadline still ends it.
    calls.cancel(principal, sessionId, callId, "The caller disconnected.").catch(() => undefined);
  };
  signal.addEventListener("abort", leave, { once: true });
  // The client may have left while the call was accepted.
  if (signal.aborted) leave();
  return () => signal.removeEventListener("abort", leave);
}

/** Lists the open permission requests of a call. */
export async function openPermissions(
  asksOf: ToolServiceDomain["asksOf"],
  { ref, part }: Pick<CallRecord, "ref" | "part">,
): Promise<PermissionRequest[]> {
  if (part.permissionIds.length === 0) return [];
  return (await asksOf(ref)).filter(({ settled }) => !settled).map(({ request }) => request);
}
