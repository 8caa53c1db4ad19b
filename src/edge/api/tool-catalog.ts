import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
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
  StoreDetailsSchema,
  UnattendedPolicy,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { StoreSafety } from "../../call/ports.ts";
import type { EdgeContext } from "./edge-context.ts";
import { pageByKey } from "./paging.ts";
import { timeHeader } from "./request-failure.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Returns the tools that an agent may see, after it has read tool files that changed. */
export async function listToolsRpc(
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
export async function getToolRpc(
  { custom, planner }: Pick<ToolServiceDomain, "custom" | "planner">,
  request: GetToolRequest,
  { principal }: EdgeContext,
): Promise<MessageInitShape<typeof GetToolResponseSchema>> {
  await custom.refresh();
  return { tool: await planner.tool(principal, request) };
}

/** Plans a call without running or recording it. */
export async function planToolRpc(
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
export function getToolStatsRpc({ stats }: Pick<ToolServiceDomain, "stats">): GetToolStatsResponse {
  return create(GetToolStatsResponseSchema, stats());
}

function detailsOf({ copies, expected, required, warnings }: StoreSafety) {
  const counts = { copies, expectedCopies: expected, requiredCopies: required };
  return create(StoreDetailsSchema, { ...counts, warnings: [...warnings] });
}

/** Returns the service, its limits and the sender of the request. */
export async function getServerInfoRpc(
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
    mcpHolds: about.mcpHolds.map((hold) => create(McpHoldSchema, hold)),
  });
}
