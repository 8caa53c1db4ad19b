import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type CallToolRequest,
  type CallToolResponse,
  CallToolResponseSchema,
  type CancelToolRequest,
  type ExecuteToolRequest,
  type ExecuteToolResponse,
  ExecuteToolResponseSchema,
  type GetToolPartRequest,
  type ListToolPartsRequest,
  OnDisconnect,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Accepted } from "../../call/accept.ts";
import { isTerminal } from "../../call/state.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { RequestError } from "../../core/request-error.ts";
import type { EdgeContext } from "./edge-context.ts";
import { nextPageToken, pageAfter } from "./paging.ts";
import { callerOf, type SenderDomain } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Accepts a call or attaches to it, and returns it when it ends or `wait_ms` is over. */
export async function callToolRpc(
  domain: Pick<ToolServiceDomain, "calls" | "store" | "asksOf"> & SenderDomain,
  request: CallToolRequest,
  context: EdgeContext,
): Promise<CallToolResponse> {
  const { calls, store, asksOf } = domain;
  const { signal, trace } = context;
  const { record } = await calls.open(await callerOf(domain, context), request, trace);
  const stopWatching = cancelOnLeave(calls, record.ref, request.onDisconnect, context);
  try {
    // As of when the call was known: a failover since then has to be noticed by the client's next request.
    const storeId = store.storeIdOf(record.ref.root);
    const { ref, part } = await calls.wait(record, request.waitMs ?? 30_000, signal);
    const permissions = isTerminal(part) || part.permissionIds.length === 0 ? [] : await openPermissions(asksOf, ref);
    return create(CallToolResponseSchema, { part, permissions, lastSeq: part.revision, storeId });
  } finally {
    stopWatching();
  }
}

/** Accepts a call or attaches to it, and streams its events until it ends. */
export async function* executeToolRpc(
  domain: Pick<ToolServiceDomain, "calls" | "store"> & SenderDomain,
  request: ExecuteToolRequest,
  context: EdgeContext,
): AsyncGenerator<ExecuteToolResponse> {
  const call = await domain.calls.open(await callerOf(domain, context), request, context.trace);
  yield* followCall(domain, call, request, context);
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

/** Cancels a call and returns it when its end is recorded. */
export async function cancelToolRpc(
  { calls }: Pick<ToolServiceDomain, "calls">,
  { sessionId, callId, message }: CancelToolRequest,
  { principal }: EdgeContext,
) {
  return { part: await calls.cancel(principal, sessionId, callId, message) };
}

/** Returns a call with its open permission requests. */
export async function getToolPartRpc(
  { calls, asksOf }: Pick<ToolServiceDomain, "calls" | "asksOf">,
  { sessionId, callId }: GetToolPartRequest,
  { principal }: EdgeContext,
) {
  const { part, ref } = (await calls.getRecord(principal, sessionId, callId, "read")).record;
  return { part, permissions: part.permissionIds.length === 0 ? [] : await openPermissions(asksOf, ref) };
}

/** Returns a page of the calls of a session, in the order in which they were accepted. */
export async function listToolPartsRpc(
  { calls }: Pick<ToolServiceDomain, "calls">,
  request: ListToolPartsRequest,
  context: EdgeContext,
) {
  const page = pageAfter(request, context);
  const records = await calls.list(context.principal, { sessionId: request.sessionId, ...page });
  const ids = records.map(({ ref }) => ref.callId);
  return { parts: records.map(({ part }) => part), nextPageToken: nextPageToken(ids, page) };
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
export async function openPermissions(asksOf: ToolServiceDomain["asksOf"], call: CallRef) {
  return (await asksOf(call)).filter(({ settled }) => !settled).map(({ request }) => request);
}
