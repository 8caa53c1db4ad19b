import { PermissionAction, type PermissionDecision } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionRequest, ListRulesRequest } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { knownPermissions } from "../policy/known-permissions.ts";
import type { LayerRules } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import { checkSize } from "./check-size.ts";
import { guardDecision } from "./guard-decision.ts";
import { openScope, type PlannerParts, questionLayers, type Scope } from "./planner-scope.ts";

/** Explains which rule decides, for each pattern as given: resolves no path and analyses no command. */
export async function explainPermission(
  parts: PlannerParts,
  principal: Principal,
  request: ExplainPermissionRequest,
): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }> {
  checkSize("patterns", request.patterns, 256 * 1024);
  const scope = await openScope(parts, principal, request.sessionId);
  const workspace = workspaceRoot(scope.workspace.name);
  await parts.registry.refresh(workspace);
  const guard = request.onlyRules ? undefined : parts.registry.guardProblem(workspace);
  if (guard !== undefined) {
    const patterns = request.patterns.length === 0 ? [""] : request.patterns;
    const decisions = patterns.map((pattern) => guardDecision(request.permission, pattern, guard));
    return { action: PermissionAction.DENY, decisions };
  }
  const layers = questionLayers(parts, ruleSubject(parts, principal, scope, request.agent), request);
  const decisions = parts.policy.explain({ permission: request.permission, patterns: request.patterns }, layers);
  return { action: decisions.length === 0 ? PermissionAction.ASK : strictest(decisions), decisions };
}

/** Lists every rule for an agent in a session or a workspace: first the layers that are read as one list, then the narrowing ones. */
export async function listRules(
  parts: PlannerParts,
  principal: Principal,
  { place, agent }: Pick<ListRulesRequest, "place" | "agent">,
): Promise<{ agent: string; workspace: string; lists: readonly LayerRules[] }> {
  const [sessionId, workspace] = place.case === "sessionId" ? [place.value, ""] : ["", place.value];
  const scope = await openScope(parts, principal, sessionId, workspace);
  const subject = ruleSubject(parts, principal, scope, agent);
  const { wide, narrow } = parts.layersFor(subject);
  return { agent: subject.agent, workspace: scope.workspace.name, lists: [...wide, ...narrow] };
}

/** Lists the permissions that can ask for an agent, by the configured rules alone. */
export function askablePermissions({ policy, layersFor, registry }: PlannerParts, agent: string): string[] {
  const layers = layersFor({ session: undefined, ancestors: [], agent });
  return policy.asking(layers, knownPermissions(registry.common()));
}

function ruleSubject({ sessions }: PlannerParts, principal: Principal, scope: Scope, agent: string) {
  const { session, ancestors, workspace } = scope;
  return {
    session,
    ancestors,
    agent: sessions.agentFor(principal, agent, session),
    workspace: workspaceRoot(workspace.name),
    directory: workspace.directory,
  };
}
