import { create } from "@bufbuild/protobuf";
import {
  type BeginCallRequest,
  type BeginCallResponse,
  BeginCallResponseSchema,
  BegunSchema,
  type FinishCallRequest,
  RefusedSchema,
  type ToolService,
  WaitingSchema,
  type WatchSessionRequest,
  type WatchSessionResponse,
  WatchSessionResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BeginOutcome } from "../../call/begin.ts";
import { inputOf } from "../../call/state.ts";
import type { EdgeContext } from "./edge-context.ts";
import type { ServiceFunctions } from "./rpc.ts";
import { callerOf, type SenderDomain } from "./sender.ts";
import { createStoreMark } from "./store-mark.ts";
import {
  callToolRpc,
  cancelToolRpc,
  executeToolRpc,
  getToolPartRpc,
  listToolPartsRpc,
  openPermissions,
} from "./tool-calls.ts";
import { getServerInfoRpc, getToolRpc, getToolStatsRpc, listToolsRpc, planToolRpc } from "./tool-catalog.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Returns the functions of ToolService, except WatchMany and StreamTools, which need more than its domain. */
export function toolService(
  domain: ToolServiceDomain,
): Omit<ServiceFunctions<typeof ToolService>, "watchMany" | "streamTools"> {
  return {
    listTools: (request, context) => listToolsRpc(domain, request, context),
    getTool: (request, context) => getToolRpc(domain, request, context),
    planTool: (request, context) => planToolRpc(domain, request, context),
    callTool: (request, context) => callToolRpc(domain, request, context),
    executeTool: (request, context) => executeToolRpc(domain, request, context),
    beginCall: (request, context) => beginCallRpc(domain, request, context),
    finishCall: (request, context) => finishCallRpc(domain, request, context),
    cancelTool: (request, context) => cancelToolRpc(domain, request, context),
    getToolPart: (request, context) => getToolPartRpc(domain, request, context),
    listToolParts: (request, context) => listToolPartsRpc(domain, request, context),
    readToolOutput: (request, { principal }) => domain.reader.read(principal, request),
    watchSession: (request, context) => watchSessionRpc(domain, request, context),
    getToolStats: () => getToolStatsRpc(domain),
    getServerInfo: (_request, context) => getServerInfoRpc(domain, context),
  };
}

/** Accepts a call that the sender runs itself, and returns the decision or, after `wait_ms`, what it waits for. */
async function beginCallRpc(
  domain: Pick<ToolServiceDomain, "calls" | "store" | "asksOf"> & SenderDomain,
  request: BeginCallRequest,
  context: EdgeContext,
): Promise<BeginCallResponse> {
  const { signal, trace } = context;
  const decided = await domain.calls.begin(await callerOf(domain, context), request, signal, trace);
  const outcome = await outcomeOf(domain, decided);
  return create(BeginCallResponseSchema, { outcome, storeId: domain.store.storeIdOf(decided.root) });
}

async function outcomeOf(
  { asksOf }: Pick<ToolServiceDomain, "asksOf">,
  decided: BeginOutcome,
): Promise<BeginCallResponse["outcome"]> {
  switch (decided.case) {
    case "begun": {
      const { assignment, part } = decided;
      const { callId, sessionId } = part;
      return { case: "begun", value: create(BegunSchema, { assignment, input: inputOf(part), callId, sessionId }) };
    }
    case "refused":
      return { case: "refused", value: create(RefusedSchema, decided) };
    case "waiting": {
      const { ref, part } = decided;
      const permissions = part.permissionIds.length === 0 ? [] : await openPermissions(asksOf, ref);
      return { case: "waiting", value: create(WaitingSchema, { permissions, lastSeq: part.revision }) };
    }
  }
}

/** Records the result that the host of a call reports. */
async function finishCallRpc(
  { calls }: Pick<ToolServiceDomain, "calls">,
  request: FinishCallRequest,
  { principal }: EdgeContext,
) {
  return { part: await calls.finish(principal, request) };
}

/** Streams the events of a session until the client leaves. */
async function* watchSessionRpc(
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
