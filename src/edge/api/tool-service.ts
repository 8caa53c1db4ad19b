import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type BeginCallResponse,
  BegunSchema,
  type ExecuteToolRequest,
  type ExecuteToolResponse,
  ExecuteToolResponseSchema,
  type GetServerInfoResponse,
  type GetToolStatsResponseSchema,
  type Limits,
  McpHoldSchema,
  OnDisconnect,
  PlanProblemSchema,
  RefusedSchema,
  StoreDetailsSchema,
  type ToolService,
  UnattendedPolicy,
  WaitingSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskRecord } from "../../approval/ports.ts";
import type { Accepted } from "../../call/accept.ts";
import type { BeginOutcome } from "../../call/begin.ts";
import type { Calls } from "../../call/calls.ts";
import type { Planner } from "../../call/planner.ts";
import type { CallRecord, StoreMembership, StoreSafety } from "../../call/ports.ts";
import { inputOf, isTerminal } from "../../call/state.ts";
import type { StoredOutputs } from "../../call/stored-outputs.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Principal } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import { pageAfter, pageByKey } from "./paging.ts";
import { timeHeader } from "./request-failure.ts";
import { callerOf, type EdgeContext, type SenderDomain, type ServiceFunctions } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";

/** Returns the functions of ToolService, except WatchMany and StreamTools, which need more than its domain. */
export function toolService(
  domain: ToolServiceDomain,
): Omit<ServiceFunctions<typeof ToolService>, "watchMany" | "streamTools"> {
  const { about, calls, custom, enforcement, planner, reader, stats, store } = domain;
  return {
    ...callFunctions(domain),
    /** Returns the tools that an agent may see, after it has read tool files that changed. */
    async listTools(request, { principal }) {
      await custom.refresh();
      const { tools, workspace } = await planner.tools(principal, request);
      const { page, nextPageToken } = pageByKey(tools, ({ name }) => name, request);
      return { tools: page, nextPageToken, problems: request.pageToken === "" ? custom.problems(workspace) : [] };
    },
    /** Returns one of these tools. */
    async getTool(request, { principal }) {
      await custom.refresh();
      return { tool: await planner.tool(principal, request) };
    },
    /** Plans a call without running or recording it. */
    async planTool(request, { principal }) {
      const { title, verdict, asks, preview, problem } = await planner.plan(principal, request);
      const { action, decisions } = verdict;
      const planned = { title, action, asks, decisions, ...(preview && { preview }) };
      return { ...planned, ...(problem && { problem: create(PlanProblemSchema, problem) }) };
    },
    /** Accepts a call that the sender runs itself, and returns the decision or, after `wait_ms`, what it waits for. */
    async beginCall(request, context) {
      const { signal, trace } = context;
      const decided = await calls.begin(await callerOf(domain, context), request, signal, trace);
      return { outcome: await outcomeOf(domain, decided), storeId: store.storeIdOf(decided.root) };
    },
    /** Records the result that the host of a call reports. */
    async finishCall(request, { principal }) {
      return { part: await calls.finish(principal, request) };
    },
    readToolOutput: (request, { principal }) => reader.read(principal, request),
    /** Streams the events of a session until the client leaves. */
    async *watchSession({ sessionId, afterSeq, callId, snapshot }, { principal, signal, heartbeatMs }) {
      const storeMark = createStoreMark(store.storeIdOf(await calls.rootOf(principal, sessionId)));
      // A number above the largest safe integer is beyond the end of every log, also after it is rounded.
      const watch = { sessionId, afterSeq: Number(afterSeq), snapshot, callId: callId || undefined, heartbeatMs };
      for await (const { event, lastSeq, snapshotEnd = false } of calls.watch(principal, watch, signal))
        yield { ...(event && { event }), lastSeq: BigInt(lastSeq), snapshotEnd, storeId: storeMark() };
    },
    /** Returns how the calls went that this replica ended since it started. */
    getToolStats: () => stats(),
    /** Returns the service, its limits and the sender of the request. */
    async getServerInfo(_request, { principal, roles, peer, response }) {
      response.headers.set(timeHeader, String(Date.now()));
      const sender = await peer();
      enforcement.identify(principal, sender);
      const agents = about.agentsOf(principal);
      const { workspaces } = principal;
      return {
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
      };
    },
  };
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
      const { part } = decided;
      const permissions = await openPermissions(asksOf, decided);
      return { case: "waiting", value: create(WaitingSchema, { permissions, lastSeq: part.revision }) };
    }
  }
}

function detailsOf({ copies, expected, required, warnings }: StoreSafety) {
  const counts = { copies, expectedCopies: expected, requiredCopies: required };
  return create(StoreDetailsSchema, { ...counts, warnings: [...warnings] });
}

type CallFunctions = "callTool" | "executeTool" | "cancelTool" | "getToolPart" | "listToolParts";

/** Returns the functions of ToolService for calls that the service runs. */
function callFunctions(domain: ToolServiceDomain): Pick<ServiceFunctions<typeof ToolService>, CallFunctions> {
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
      const page = { sessionId: request.sessionId, ...pageAfter(request, context) };
      const { parts, next } = await calls.list(context.principal, page);
      return { parts, nextPageToken: next ?? "" };
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
async function openPermissions(
  asksOf: ToolServiceDomain["asksOf"],
  { ref, part }: Pick<CallRecord, "ref" | "part">,
): Promise<PermissionRequest[]> {
  if (part.permissionIds.length === 0) return [];
  return (await asksOf(ref)).filter(({ settled }) => !settled).map(({ request }) => request);
}

/** Domain that ToolService works on. */
export interface ToolServiceDomain extends SenderDomain {
  calls: Calls;
  planner: Planner;
  reader: StoredOutputs;
  store: Pick<StoreMembership, "storeId" | "storeIdOf" | "format" | "safety">;
  asksOf(call: CallRef): Promise<AskRecord[]>;
  stats(): MessageInitShape<typeof GetToolStatsResponseSchema>;
  custom: {
    refresh(): Promise<void>;
    problems(workspace: string): { path: string; line: number; reason: string }[];
  };
  about: {
    version: string;
    workspaces: string[];
    agentsOf(principal: Principal): { agent: string; description: string }[];
    limits: Limits;
    unattended: "wait" | "deny";
    /** Empty: none is configured. */
    publicUrl: string;
    mcpHolds: readonly { readonly client: string; readonly httpMs: number; readonly stdioMs: number }[];
    sandbox(): Pick<
      GetServerInfoResponse,
      "sandbox" | "sandboxNetwork" | "sandboxNetworkAccess" | "sandboxProblem" | "sandboxDetails" | "preset"
    >;
  };
}
