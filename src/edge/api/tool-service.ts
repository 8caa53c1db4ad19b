import { create } from "@bufbuild/protobuf";
import {
  type BeginCallResponse,
  BegunSchema,
  McpHoldSchema,
  PlanProblemSchema,
  RefusedSchema,
  StoreDetailsSchema,
  type ToolService,
  UnattendedPolicy,
  WaitingSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BeginOutcome } from "../../call/begin.ts";
import type { StoreSafety } from "../../call/ports.ts";
import { inputOf } from "../../call/state.ts";
import { pageByKey } from "./paging.ts";
import { timeHeader } from "./request-failure.ts";
import { callerOf, type ServiceFunctions } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";
import { callFunctions, openPermissions } from "./tool-calls.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

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
