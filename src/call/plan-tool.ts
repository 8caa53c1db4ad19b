import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type CallView,
  type PermissionRequest,
  type Preview,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { PlanToolRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createCallView } from "../approval/call-view.ts";
import type { Verdict } from "../approval/judge-asks.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { isForeignPermission } from "../policy/known-permissions.ts";
import type { Layers } from "../policy/model.ts";
import type { Subject } from "../policy/subject.ts";
import { InvalidInput, ToolFailure } from "../tool/errors.ts";
import type { PlanContext, Tool } from "../tool/tool.ts";
import { approvalDigest } from "./approval-digest.ts";
import { questionsOf } from "./asks.ts";
import { guardDecision } from "./guard-decision.ts";
import { cutPreview, inspectCall } from "./inspect.ts";
import { openScope, type PlannerParts, questionLayers, type Scope } from "./planner-scope.ts";
import { type Judged, judgeCall } from "./planning.ts";
import { notGuarded } from "./prepare.ts";
import { digestOfRequest } from "./request-digest.ts";
import { subjectFor } from "./running.ts";
import { createToolJudge } from "./tool-judge.ts";

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

/** Plans and judges a call as the engine would, without making it. */
export async function planTool(
  parts: PlannerParts,
  principal: Principal,
  request: PlanToolRequest,
): Promise<PlannedTool> {
  parts.lines.checkBudget(principal.id);
  const scope = await openScope(parts, principal, request.sessionId);
  const agent = parts.sessions.agentFor(principal, request.agent, scope.session);
  const workspace = workspaceRoot(scope.workspace.name);
  await parts.registry.refresh(workspace);
  const tool = toolOf(parts, request, scope);
  const guard = request.onlyRules ? undefined : parts.registry.guardProblem(workspace);
  if (guard !== undefined) {
    const decision = guardDecision("*", "*", guard);
    const verdict = { action: PermissionAction.DENY, decisions: [decision], unapproved: [] };
    const problem = { reason: ToolErrorReason.GUARD_NOT_LOADED, message: notGuarded(guard) };
    return { title: tool.name, verdict, asks: [], problem };
  }
  const subject = subjectFor(scope, agent, tool);
  const layers = questionLayers(parts, subject, request);
  const judged = await judgeRequest(parts, principal.id, request, scope, tool, subject, layers);
  // The targets are unknown, and an unknown target is never allowed.
  if (judged instanceof ToolFailure) {
    const verdict = { action: PermissionAction.ASK, decisions: [], unapproved: [] };
    return { title: tool.name, verdict, asks: [], problem: failing(judged) };
  }
  const { plan, verdict } = judged;
  const { preview: whole, missing = [], problem } = await inspectCall(parts, judged, layers);
  const preview = whole && cutPreview(await whole());
  const view = createCallView({
    ...{ tool: tool.name, title: plan.title, input: request.input ?? {}, files: plan.files ?? [] },
    missing: [...(plan.missing ?? []), ...missing],
  });
  const asks = await unopenedRequests(parts, request, scope, tool, subject, judged, { preview, view });
  return {
    title: plan.title,
    verdict,
    asks,
    ...(preview && { preview }),
    ...(problem && { problem: failing(problem) }),
  };
}

const failing = ({ message }: ToolFailure) => ({ reason: ToolErrorReason.FAILED, message });

/** Finds the tool; one of an agent that runs it itself is planned as if its host shared the disk and ran it in the workspace. */
function toolOf({ registry, foreign }: PlannerParts, { tool: name }: PlanToolRequest, { workspace }: Scope): Tool {
  if (isForeignPermission(name)) return foreign.tool(name, { directory: workspace.directory, isDiskShared: true });
  const tool = registry.get(name, workspaceRoot(workspace.name));
  if (tool) return tool;
  throw new RequestError(ErrorReason.UNKNOWN_TOOL, `there is no tool "${name}"; ListTools shows what there is`, {
    tool: name,
  });
}

/** Judges the call; returns a failure of the tool's planning in place of a verdict. */
async function judgeRequest(
  parts: PlannerParts,
  principal: string,
  request: PlanToolRequest,
  { session, workspace }: Scope,
  tool: Tool,
  subject: Subject,
  layers: Layers,
): Promise<Judged | ToolFailure> {
  const { policy, store } = parts;
  const root = session?.rootSessionId;
  const ctx: PlanContext = {
    sessionId: request.sessionId,
    callId: "",
    agent: subject.agent,
    workspace,
    environment: async () => ({}),
    reads: { get: async (path) => (root === undefined ? undefined : await store.getRead(root, path)) },
    judge: createToolJudge(policy, () => layers),
  };
  // As in BeginCall, whose digest covers the directory.
  const place = isForeignPermission(tool.name) ? `\n${workspace.directory}` : "";
  const requestDigest = () => digestOfRequest(tool.name, canonicalJson(request.input ?? {}) + place);
  const repeats = session === undefined || request.onlyRules ? 0 : await store.repeatsOf(session.id, requestDigest());
  const options = {
    repeats,
    request: request.input ?? {},
    layers,
    grants: request.onlyRules ? "none" : "look",
    principal,
    onlyRules: request.onlyRules,
  } as const;
  try {
    return await judgeCall(parts, tool, decodeRequest(tool, request), ctx, subject, options);
  } catch (cause) {
    if (cause instanceof ToolFailure) return cause;
    throw cause;
  }
}

function decodeRequest(tool: Tool, { input }: PlanToolRequest): unknown {
  try {
    return tool.decode(input ?? {});
  } catch (cause) {
    if (!(cause instanceof InvalidInput)) throw cause;
    throw new RequestError(ErrorReason.INVALID_INPUT, cause.message, { tool: tool.name }, { cause });
  }
}

/** Builds the permission requests that the call would open. */
async function unopenedRequests(
  parts: PlannerParts,
  { input = {}, sessionId }: PlanToolRequest,
  scope: Scope,
  tool: Tool,
  subject: Subject,
  { plan, verdict }: Judged,
  shown: { preview: Preview | undefined; view: CallView },
): Promise<PermissionRequest[]> {
  if (verdict.action !== PermissionAction.ASK || verdict.unapproved.length === 0) return [];
  const digest = await approvalDigest(parts, tool, input, plan, scope);
  return verdict.unapproved.map((ask) => {
    const metadata = plan.asks.find(({ permission }) => permission === ask.permission)?.metadata;
    return parts.permissions.request(
      { ...ask, ...(metadata && { metadata }) },
      verdict.decisions,
      {
        sessionId,
        agent: subject.agent,
        digest,
        expires: parts.store.now() + parts.askMs,
        ...shown,
        question: questionsOf(ask, plan),
      },
      subject,
      "",
    );
  });
}
