import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
  type PermissionRule,
  type RuleMatch,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionRequest, ListRulesRequest } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  type CallView,
  type PermissionRequest,
  type Preview,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { GetToolRequest, PlanToolRequest, ToolDefinition } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Verdict } from "../approval/judge-asks.ts";
import { createCallView } from "../approval/permission-request.ts";
import type { Ask } from "../core/ask.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { isForeignPermission, knownPermissions } from "../policy/known-permissions.ts";
import { checkRules, type LayersFor } from "../policy/layers.ts";
import { createMatchSteps, type LayerRules, type Layers, type Subject, stepsPerMs } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import { InvalidInput, ToolFailure } from "../tool/errors.ts";
import type { ForeignTools } from "../tool/foreign.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import { similar } from "../tool/similar.ts";
import type { Tool } from "../tool/tool.ts";
import { resolvePlanPaths } from "./ask-paths.ts";
import { questionsOf } from "./asks.ts";
import { checkLevels, checkSize } from "./check-size.ts";
import {
  type CallDecision,
  type CallQuestion,
  cutPreview,
  type DecisionMode,
  decide,
  decideCall,
  type Planning,
} from "./decide.ts";
import { approvalDigest, digestOfRequest } from "./digests.ts";
import type { Stops } from "./engine.ts";
import { listTools, type ToolViewer } from "./list-tools.ts";
import type { CallRecordReader, StoreClock, ToolMemory } from "./ports.ts";
import { noEnvironment, notGuarded, planContext } from "./prepare.ts";
import { placeFor, subjectFor } from "./running.ts";
import type { OpenSession, Sessions } from "./sessions.ts";
import { adviceText, stopDecision, stopOf } from "./stops.ts";

/** Dependencies of the planner. */
export interface PlannerParts extends Planning {
  sessions: Sessions;
  registry: Registry;
  foreign: ForeignTools;
  hooks: HookChain;
  stops: Pick<Stops, "current">;
  store: CallRecordReader & ToolMemory & StoreClock;
  /** Returns where a rule that matched is written, as FILE:LINE; empty for a rule of no file. */
  placeOf(match: RuleMatch, subject: Pick<Subject, "workspace" | "directory" | "agent">): string;
  askMs: number;
}

/** Plan of a call that is not made. */
export interface PlannedTool {
  title: string;
  verdict: Verdict;
  /** Permission requests that the call would open, without ids. */
  asks: PermissionRequest[];
  preview?: Preview;
  /** The tool's check that fails. */
  problem?: { reason: ToolErrorReason; message: string };
}

/** Answers questions about calls and rules. Runs and records nothing. */
export type Planner = ReturnType<typeof createPlanner>;

/** Creates the planner of a replica. */
export function createPlanner(parts: PlannerParts) {
  const { layersFor, policy, registry, sessions } = parts;
  return {
    /** Plans a call: what it would do and ask. */
    plan: (principal: Principal, request: PlanToolRequest): Promise<PlannedTool> => planTool(parts, principal, request),
    /** Explains which rule decides, for each pattern as given. */
    explain: (
      principal: Principal,
      request: ExplainPermissionRequest,
    ): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }> =>
      explainPermission(parts, principal, request),
    /** Lists the rules for an agent in a session or a workspace: first the layers that are read as one list, then the narrowing ones. */
    async rules(
      principal: Principal,
      { place, agent }: Pick<ListRulesRequest, "place" | "agent">,
    ): Promise<{ agent: string; workspace: string; lists: readonly LayerRules[] }> {
      const [sessionId, workspace] = place.case === "sessionId" ? [place.value, ""] : ["", place.value];
      const scope = await openScope(parts, principal, sessionId, workspace);
      const subject = placeFor(scope, sessions.agentFor(principal, agent, scope.session));
      const { wide, narrow } = layersFor(subject);
      return { agent: subject.agent, workspace: scope.workspace.name, lists: [...wide, ...narrow] };
    },
    /** Lists the permissions that can ask for an agent, by the configured rules alone. */
    asking: (agent: string): string[] =>
      policy.asking(layersFor({ session: undefined, ancestors: [], agent }), knownPermissions(registry.all())),
    /** Lists the tools that an agent may see. */
    tools: (principal: Principal, request: ToolViewer): Promise<{ tools: ToolDefinition[]; workspace: string }> =>
      listTools(parts, principal, request),
    /** Returns one of them; refused if there is none of this name. */
    async tool(principal: Principal, request: GetToolRequest): Promise<ToolDefinition> {
      const { tools } = await listTools(parts, principal, request, request.name);
      return tools[0] ?? refuseUnknown(request.name);
    },
  };
}

/** The session of a question, or only a workspace. */
interface Scope extends Pick<OpenSession, "workspace" | "ancestors"> {
  session?: Session;
}

/** Opens the session that a question names, or without one the workspace. */
async function openScope(
  { sessions }: PlannerParts,
  principal: Principal,
  sessionId: string,
  workspace = "",
): Promise<Scope> {
  if (sessionId !== "") return await sessions.open(principal, sessionId, "read");
  return { workspace: await sessions.openNamed(principal, workspace || "default"), ancestors: [] };
}

/** Returns the mode of a question: the rules of its subject and, last, its own; with `onlyRules` these alone. */
function modeOf(
  { layersFor }: PlannerParts,
  subject: LayersFor,
  { rules, onlyRules }: { rules: readonly PermissionRule[]; onlyRules: boolean },
): DecisionMode & { rules: Layers } {
  const own: Layers = onlyRules ? { wide: [], narrow: [] } : layersFor(subject);
  checkRules("rules", rules);
  const wide = rules.length === 0 ? own.wide : [...own.wide, { layer: PermissionLayer.REQUEST, rules }];
  return { rules: { ...own, wide }, ...(onlyRules ? { grants: "none", facts: "none" } : { grants: "look" }) };
}

/** Plans and judges a call as the engine would, without making it. */
async function planTool(parts: PlannerParts, principal: Principal, request: PlanToolRequest): Promise<PlannedTool> {
  parts.lines.checkBudget(principal.id);
  checkLevels("input", request.input);
  const scope = await openScope(parts, principal, request.sessionId);
  const agent = parts.sessions.agentFor(principal, request.agent, scope.session);
  const workspace = workspaceRoot(scope.workspace.name);
  await parts.registry.refresh(workspace);
  const tool = toolOf(parts, request, scope);
  const denial = request.onlyRules ? undefined : denialOf(parts, scope, agent);
  if (denial) {
    const decision = create(PermissionDecisionSchema, { ...denial.decision, permission: "*", pattern: "*" });
    const action = PermissionAction.DENY;
    const verdict = { action, byRules: action, decisions: [decision], unapproved: [] };
    return { title: tool.name, verdict, asks: [], problem: denial.problem };
  }
  const subject = subjectFor(scope, agent, tool);
  const mode = modeOf(parts, subject, request);
  const question = await questionAbout(parts, principal.id, request, scope, { tool, subject }, mode.rules);
  const decision = await decideCall(parts, question, mode).catch((cause: unknown) => {
    if (cause instanceof ToolFailure) return cause;
    throw cause;
  });
  // The targets are unknown, and an unknown target is never allowed.
  if (decision instanceof ToolFailure) {
    const action = PermissionAction.ASK;
    const verdict = { action, byRules: action, decisions: [], unapproved: [] };
    return { title: tool.name, verdict, asks: [], problem: failing(decision) };
  }
  const { plan, verdict } = decision;
  const { preview: whole, files = [], missing = [], targets = [], problem } = await decision.view();
  const preview = whole && cutPreview(await whole());
  const view = createCallView({
    ...{ tool: tool.name, title: plan.title, input: question.request, files, missing, targets },
  });
  return {
    ...{ title: plan.title, verdict },
    asks: await unopenedRequests(parts, question, scope, decision, { preview, view }),
    ...(preview && { preview }),
    ...(problem && { problem: failing(problem) }),
  };
}

const failing = ({ message }: ToolFailure) => ({ reason: ToolErrorReason.FAILED, message });

/** Finds the tool; one of an agent that runs it itself is planned as if its host shared the disk and ran it in the workspace. */
function toolOf({ registry, foreign }: PlannerParts, { tool: name }: PlanToolRequest, { workspace }: Scope): Tool {
  if (isForeignPermission(name)) return foreign.tool(name, { directory: workspace.directory, isDiskShared: true });
  const tool = registry.get(name, workspaceRoot(workspace.name));
  return tool ?? refuseUnknown(name);
}

function refuseUnknown(name: string): never {
  throw new RequestError(ErrorReason.UNKNOWN_TOOL, `there is no tool "${name}"; ListTools shows what there is`, {
    tool: name,
  });
}

/** Puts the question about a call that is not made. */
async function questionAbout(
  { policy, store }: PlannerParts,
  principal: string,
  { input: request = {}, sessionId, onlyRules }: PlanToolRequest,
  scope: Scope,
  { tool, subject }: Pick<CallQuestion, "tool" | "subject">,
  rules: Layers,
): Promise<CallQuestion> {
  const { session, workspace } = scope;
  // As in BeginCall, whose digest covers the directory.
  const place = isForeignPermission(tool.name) ? `\n${workspace.directory}` : "";
  const requestDigest = () => digestOfRequest(tool.name, canonicalJson(request) + place);
  const repeats = session === undefined || onlyRules ? 0 : await store.repeatsOf(session.id, requestDigest());
  const judged = { call: { tool: tool.name, input: request } };
  const call = { sessionId, callId: "", root: session?.rootSessionId, agent: subject.agent, ...judged };
  return {
    ...{ tool, subject, principal, request, repeats },
    input: decodeRequest(tool, request),
    ctx: planContext({ policy, store, layersFor: () => rules }, call, scope, noEnvironment),
  };
}

function decodeRequest(tool: Tool, input: NonNullable<PlanToolRequest["input"]>): unknown {
  try {
    return tool.decode(input);
  } catch (cause) {
    if (!(cause instanceof InvalidInput)) throw cause;
    throw new RequestError(ErrorReason.INVALID_INPUT, cause.message, { tool: tool.name }, { cause });
  }
}

/** Builds the permission requests that the call would open. */
async function unopenedRequests(
  parts: PlannerParts,
  { tool, subject, request, ctx: { sessionId, agent } }: CallQuestion,
  scope: Scope,
  decision: CallDecision,
  shown: { preview: Preview | undefined; view: CallView },
): Promise<PermissionRequest[]> {
  const { plan, verdict } = decision;
  if (verdict.action !== PermissionAction.ASK || verdict.unapproved.length === 0) return [];
  const digest = await approvalDigest(parts, tool, request, decision, scope);
  return (await decision.withCodeRisks(verdict.unapproved)).map((ask) => {
    const metadata = plan.asks.find(({ permission }) => permission === ask.permission)?.metadata;
    const expires = parts.store.now() + (parts.permissions.approvalOf(ask, subject)?.askMs ?? parts.askMs);
    return parts.permissions.request(
      { ...ask, ...(metadata && { metadata }) },
      verdict.decisions,
      { sessionId, agent, digest, expires, ...shown, question: questionsOf(ask, plan) },
      subject,
      "",
    );
  });
}

/** Explains which rule decides, for each pattern. */
async function explainPermission(
  parts: PlannerParts,
  principal: Principal,
  request: ExplainPermissionRequest,
): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }> {
  const { permission, patterns, onlyRules } = request;
  parts.lines.checkBudget(principal.id);
  checkSize("patterns", patterns, 256 * 1024);
  const scope = await openScope(parts, principal, request.sessionId);
  const workspace = workspaceRoot(scope.workspace.name);
  await parts.registry.refresh(workspace);
  const agent = parts.sessions.agentFor(principal, request.agent, scope.session);
  const denial = onlyRules ? undefined : denialOf(parts, scope, agent);
  if (denial) {
    const denied = patterns.length === 0 ? [""] : patterns;
    const decisions = denied.map((pattern) =>
      create(PermissionDecisionSchema, { ...denial.decision, permission, pattern }),
    );
    return { action: PermissionAction.DENY, decisions };
  }
  const place = placeFor(scope, agent);
  const steps = createMatchSteps();
  const mode = modeOf(parts, place, request);
  const rules = { ...mode.rules, steps };
  const hint = nearestPermission(parts, permission, rules);
  const decisions: PermissionDecision[] = [];
  for (const pattern of patterns) {
    const plan = { title: "", asks: await asksFor(permission, pattern, scope) };
    const question = { subject: { ...place, tool: "", binding: "" }, principal: principal.id, plan, ...scope };
    const { verdict } = await decide(parts, question, { ...mode, rules, grants: "none" });
    const isOwn = (decision: PermissionDecision) => decision.permission === permission;
    decisions.push(...verdict.decisions.filter(isOwn), ...verdict.decisions.filter((decision) => !isOwn(decision)));
  }
  parts.lines.charge(principal.id, steps.used() / stepsPerMs);
  for (const decision of decisions) {
    decision.reason += hint;
    for (const match of decision.matches) match.place = parts.placeOf(match, place);
  }
  return { action: decisions.length === 0 ? PermissionAction.ASK : strictest(decisions), decisions };
}

/** Returns the asks for a pattern, with canonical paths. */
async function asksFor(permission: string, pattern: string, { workspace }: Scope): Promise<readonly Ask[]> {
  const asks = [{ permission, patterns: [pattern], ...(permission === "bash" && { cwd: workspace.directory }) }];
  // A directory is given as a pattern already; one that leads to no place, such as one with NUL, is judged as it is.
  if (permission === "external_directory") return asks;
  const resolved = await resolvePlanPaths({ asks }, workspace).catch(() => ({ asks }));
  return resolved.asks;
}

/** Names the nearest permission for one that no tool asks and no rule names; empty if there is none. */
function nearestPermission({ registry }: PlannerParts, permission: string, { wide, narrow }: Layers): string {
  const named = [...wide, ...narrow].flatMap(({ rules }) => rules.map((rule) => rule.permission));
  const known = knownPermissions(registry.all());
  if (known.includes(permission) || named.includes(permission) || isForeignPermission(permission)) return "";
  const [nearest] = similar(permission, known, 1);
  return nearest === undefined ? "" : `; no tool asks for the permission "${permission}": did you mean "${nearest}"?`;
}

/** Returns why everything is denied: a person stopped it, or a plugin that may guard the workspace is not loaded. */
function denialOf({ registry, stops }: PlannerParts, scope: Scope, agent: string) {
  const by = { action: PermissionAction.DENY, layer: PermissionLayer.ENGINE };
  const stop = stopOf({ stops }, scope, agent);
  if (stop) {
    const { reason, reasonCode } = stopDecision(stop, "*");
    const problem = { reason: ToolErrorReason.DENIED, message: `Nothing was run: ${reason}. ${adviceText}` };
    return { decision: { ...by, reason, reasonCode }, problem };
  }
  const guard = registry.guardProblem(workspaceRoot(scope.workspace.name));
  if (guard === undefined) return undefined;
  return {
    decision: { ...by, reason: `engine: ${guard}`, reasonCode: PermissionReason.GUARD_NOT_LOADED },
    problem: { reason: ToolErrorReason.GUARD_NOT_LOADED, message: notGuarded(guard) },
  };
}
