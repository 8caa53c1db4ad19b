import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type BeginCallRequest,
  type BeginCallResponse,
  BeginCallResponseSchema,
  BegunSchema,
  type FinishCallRequest,
  type GetServerInfoResponse,
  GetServerInfoResponseSchema,
  type GetToolRequest,
  type GetToolResponseSchema,
  type GetToolStatsResponse,
  GetToolStatsResponseSchema,
  type ListToolsRequest,
  type ListToolsResponseSchema,
  McpHoldSchema,
  PlanProblemSchema,
  type PlanToolRequest,
  type PlanToolResponse,
  PlanToolResponseSchema,
  RefusedSchema,
  StoreDetailsSchema,
  type ToolService,
  UnattendedPolicy,
  WaitingSchema,
  type WatchSessionRequest,
  type WatchSessionResponse,
  WatchSessionResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BeginOutcome } from "../../call/begin.ts";
import type { StoreSafety } from "../../call/ports.ts";
import { inputOf } from "../../call/state.ts";
import type { EdgeContext } from "./edge-context.ts";
import { pageByKey } from "./paging.ts";
import { timeHeader } from "./request-failure.ts";
import { callerOf, type SenderDomain, type ServiceFunctions } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";
import {
  callToolRpc,
  cancelToolRpc,
  executeToolRpc,
  getToolPartRpc,
  listToolPartsRpc,
  openPermissions,
} from "./tool-calls.ts";
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

/** Returns the tools that an agent may see, after it has read tool files that changed. */
async function listToolsRpc(
  { custom, planner }: Pick<ToolServiceDomain, "custom" | "planner">,
  request: ListToolsRequest,
  { principal }: EdgeContext,
): Promise<MessageInitShape<typeof ListToolsResponseSchema>> {
  await custom.refresh();
  const { tools, workspace } = await planner.tools(principal, request);
  const { page, nextPageToken } = pageByKey(tools, ({ name }) => name, request);
  return { tools: page, nextPageToken, problems: request.pageToken === "" ? custom.problems(workspace) : [] };
}

/** Returns one of these tools. */
async function getToolRpc(
  { custom, planner }: Pick<ToolServiceDomain, "custom" | "planner">,
  request: GetToolRequest,
  { principal }: EdgeContext,
): Promise<MessageInitShape<typeof GetToolResponseSchema>> {
  await custom.refresh();
  return { tool: await planner.tool(principal, request) };
}

/** Plans a call without running or recording it. */
async function planToolRpc(
  { planner }: Pick<ToolServiceDomain, "planner">,
  request: PlanToolRequest,
  { principal }: EdgeContext,
): Promise<PlanToolResponse> {
  const { title, verdict, asks, preview, problem } = await planner.plan(principal, request);
  return create(PlanToolResponseSchema, {
    title,
    action: verdict.action,
    asks,
    decisions: verdict.decisions,
    ...(preview && { preview }),
    ...(problem && {
      problem: create(PlanProblemSchema, problem),
    }),
  });
}

/** Returns how the calls went that this replica ended since it started. */
function getToolStatsRpc({ stats }: Pick<ToolServiceDomain, "stats">): GetToolStatsResponse {
  return create(GetToolStatsResponseSchema, stats());
}

function detailsOf({ copies, expected, required, warnings }: StoreSafety) {
  const counts = { copies, expectedCopies: expected, requiredCopies: required };
  return create(StoreDetailsSchema, { ...counts, warnings: [...warnings] });
}

/** Returns the service, its limits and the sender of the request. */
async function getServerInfoRpc(
  { about, planner, store, enforcement }: Pick<ToolServiceDomain, "about" | "planner" | "store" | "enforcement">,
  { principal, roles, peer, response }: EdgeContext,
): Promise<GetServerInfoResponse> {
  response.headers.set(timeHeader, String(Date.now()));
  const sender = await peer();
  enforcement.identify(principal, sender);
  const agents = about.agentsOf(principal);
  const { workspaces } = principal;
  return create(GetServerInfoResponseSchema, {
    version: about.version,
    storeId: store.storeId,
    ...about.sandbox(),
    limits: about.limits,
    workspaces: about.workspaces.filter((name) => workspaces.includes("*") || workspaces.includes(name)),
    agents: agents.map(({ agent }) => agent),
    agentDetails: agents.map((details) => ({ ...details, canAsk: planner.asking(details.agent) })),
    unattended: about.unattended === "deny" ? UnattendedPolicy.DENY : UnattendedPolicy.WAIT,
    principal: principal.id,
    ...(principal.identity && { person: principal.identity.person }),
    roles: [...roles],
    enforcement: enforcement.judge(sender.uid),
    format: store.format,
    storeDetails: detailsOf(store.safety()),
    publicUrl: about.publicUrl,
    mcpHolds: about.mcpHolds.map((hold) => create(McpHoldSchema, hold)),
  });
}
