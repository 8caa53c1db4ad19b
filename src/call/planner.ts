import type { PermissionAction, PermissionDecision } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionRequest, ListRulesRequest } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { ListToolsRequest, PlanToolRequest, ToolDefinition } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import type { LayerRules } from "../policy/model.ts";
import { askablePermissions, explainPermission, listRules } from "./explain.ts";
import { listTools } from "./list-tools.ts";
import { type PlannedTool, planTool } from "./plan-tool.ts";
import type { PlannerParts } from "./planner-scope.ts";

/** Answers questions about calls and rules. Runs and records nothing. */
export interface Planner {
  /** Plans a call: what it would do and ask. */
  plan(principal: Principal, request: PlanToolRequest): Promise<PlannedTool>;
  /** Explains which rule decides, for each pattern as given. */
  explain(
    principal: Principal,
    request: ExplainPermissionRequest,
  ): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }>;
  /** Lists the rules for an agent in a session or a workspace. */
  rules(
    principal: Principal,
    request: Pick<ListRulesRequest, "place" | "agent">,
  ): Promise<{ agent: string; workspace: string; lists: readonly LayerRules[] }>;
  /** Lists the permissions that can ask for an agent. */
  asking(agent: string): string[];
  /** Lists the tools that an agent may see. */
  tools(principal: Principal, request: ListToolsRequest): Promise<{ tools: ToolDefinition[]; workspace: string }>;
}

/** Creates the planner of a replica. */
export function createPlanner(parts: PlannerParts): Planner {
  return {
    plan: (principal, request) => planTool(parts, principal, request),
    explain: (principal, request) => explainPermission(parts, principal, request),
    rules: (principal, request) => listRules(parts, principal, request),
    asking: (agent) => askablePermissions(parts, agent),
    tools: (principal, request) => listTools(parts, principal, request),
  };
}
