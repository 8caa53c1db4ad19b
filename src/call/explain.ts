import { PermissionAction, type PermissionDecision } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionRequest, ListRulesRequest } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { Principal } from "../core/principal.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { isForeignPermission, knownPermissions } from "../policy/known-permissions.ts";
import { createMatchSteps, stepsPerMs } from "../policy/match-steps.ts";
import type { LayerRules, Layers } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import { similar } from "../tool/similar.ts";
import { resolvePlanPaths } from "./ask-paths.ts";
import { checkSize } from "./check-size.ts";
import { guardDecision } from "./guard-decision.ts";
import { openScope, type PlannerParts, questionLayers, type Scope } from "./planner-scope.ts";
import { expandAsks } from "./planning.ts";

/** Explains which rule decides, for each pattern, by the analysis with which the engine judges calls. */
export async function explainPermission(
  parts: PlannerParts,
  principal: Principal,
  request: ExplainPermissionRequest,
): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }> {
  parts.lines.checkBudget(principal.id);
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
  const steps = createMatchSteps();
  const subject = ruleSubject(parts, principal, scope, request.agent);
  const { agent } = subject;
  const layers = { ...questionLayers(parts, subject, request), steps };
  const hint = nearestPermission(parts, request.permission, layers);
  const decisions: PermissionDecision[] = [];
  for (const pattern of request.patterns)
    decisions.push(...(await explainPattern(parts, scope, principal.id, { ...request, agent }, pattern, layers)));
  parts.lines.charge(principal.id, steps.used() / stepsPerMs);
  for (const decision of decisions) {
    decision.reason += hint;
    for (const match of decision.matches) match.place = parts.placeOf(match, subject);
  }
  return { action: decisions.length === 0 ? PermissionAction.ASK : strictest(decisions), decisions };
}

/** Returns the decisions on everything that a pattern stands for, first those of the permission itself. */
async function explainPattern(
  parts: PlannerParts,
  { workspace }: Scope,
  principal: string,
  { permission, agent, onlyRules }: Pick<ExplainPermissionRequest, "permission" | "agent" | "onlyRules">,
  pattern: string,
  layers: Layers,
): Promise<PermissionDecision[]> {
  const ask: Ask = {
    permission,
    patterns: [pattern],
    ...(permission === "bash" && { cwd: workspace.directory }),
  };
  // A directory is given as a pattern already; one that leads to no place, such as one with NUL, is judged as it is.
  const isPattern = permission === "external_directory";
  const resolved = isPattern
    ? { asks: [ask] }
    : await resolvePlanPaths({ asks: [ask] }, workspace).catch(() => ({ asks: [ask] }));
  const isConfined = !onlyRules && parts.confines?.(agent);
  const planned = isConfined ? resolved.asks.map((ask) => ({ ...ask, isConfined })) : resolved.asks;
  const asks = await expandAsks(parts, principal, planned, layers, workspace);
  const judged = asks.flatMap((one) =>
    parts.policy.judge(one, layers).filter(({ action }) => !one.restricts || action !== PermissionAction.ALLOW),
  );
  const isOwn = (decision: PermissionDecision) => decision.permission === permission;
  return [...judged.filter(isOwn), ...judged.filter((decision) => !isOwn(decision))];
}

/** Names the nearest permission for one that no tool asks and no rule names; empty if there is none. */
function nearestPermission({ registry }: PlannerParts, permission: string, { wide, narrow }: Layers): string {
  const named = [...wide, ...narrow].flatMap(({ rules }) => rules.map((rule) => rule.permission));
  const known = knownPermissions(registry.all());
  if (known.includes(permission) || named.includes(permission) || isForeignPermission(permission)) return "";
  const [nearest] = similar(permission, known, 1);
  return nearest === undefined ? "" : `; no tool asks for the permission "${permission}": did you mean "${nearest}"?`;
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
  return policy.asking(layers, knownPermissions(registry.all()));
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
