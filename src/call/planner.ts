import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  type PermissionRule,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionRequest, ListRulesRequest } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest, Preview } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type ListToolsRequest,
  type PlanToolRequest,
  type ToolDefinition,
  ToolDefinitionSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Verdict } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { isListed, knownPermissions } from "../policy/known-permissions.ts";
import { checkRules, type LayersFor } from "../policy/layers.ts";
import type { LayerRules, Layers } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import { strictest } from "../policy/policy.ts";
import { HookFailure, InvalidInput, ToolFailure } from "../tool/errors.ts";
import type { HookChain } from "../tool/hooks.ts";
import { offeredTo, schemaFor } from "../tool/offered.ts";
import type { Registry } from "../tool/registry.ts";
import type { PlanContext, Tool } from "../tool/tool.ts";
import { beginning, type Planning } from "./planning.ts";
import type { CallStore } from "./ports.ts";
import { digestOfRequest } from "./request-digest.ts";
import { subjectFor } from "./running.ts";
import { checkSize, type OpenSession, type Sessions } from "./sessions.ts";

export type Planner = ReturnType<typeof createPlanner>;

/** Answers questions about calls and rules; runs and records nothing. */
export function createPlanner({
  sessions,
  planning,
  permissions,
  policy,
  layersFor,
  registry,
  hooks,
  store,
  askMs,
}: {
  sessions: Sessions;
  planning: Planning;
  permissions: Permissions;
  policy: Policy;
  layersFor(subject: LayersFor): Layers;
  registry: Registry;
  hooks: HookChain;
  store: CallStore;
  askMs: number;
}) {
  /** The layers of a question: the subject's and, last, the rules it brings; or these alone. */
  function layersOf(subject: LayersFor, rules: readonly PermissionRule[], onlyRules: boolean): Layers {
    const own: Layers = onlyRules ? { wide: [], narrow: [] } : layersFor(subject);
    if (rules.length === 0) return own;
    checkRules("rules", rules);
    return { ...own, wide: [...own.wide, { layer: PermissionLayer.REQUEST, rules }] };
  }

  async function place(
    principal: Principal,
    sessionId: string,
    workspace = "",
  ): Promise<Pick<OpenSession, "workspace" | "ancestors"> & { session?: OpenSession["session"] }> {
    if (sessionId !== "") return await sessions.open(principal, sessionId, "read");
    return { workspace: await sessions.openNamed(workspace || "default"), ancestors: [] };
  }

  function ruleSubject(principal: Principal, opened: Awaited<ReturnType<typeof place>>, asked: string) {
    const { session, ancestors, workspace } = opened;
    return {
      session,
      ancestors,
      agent: sessions.agentFor(principal, asked, session),
      workspace: workspaceRoot(workspace.name),
      directory: workspace.directory,
    };
  }

  return {
    /** What a call would do and what would be asked. */
    async plan(
      principal: Principal,
      request: PlanToolRequest,
    ): Promise<{
      title: string;
      verdict: Verdict;
      asks: PermissionRequest[];
      preview?: Preview;
      problem?: ToolFailure;
    }> {
      const opened = await place(principal, request.sessionId);
      const agent = sessions.agentFor(principal, request.agent, opened.session);
      const tool = registry.get(request.tool, workspaceRoot(opened.workspace.name));
      if (!tool)
        throw new RequestError(
          ErrorReason.UNKNOWN_TOOL,
          `there is no tool "${request.tool}"; ListTools shows what there is`,
          { tool: request.tool },
        );
      const input = request.input ?? {};
      const subject = subjectFor(opened, agent, tool);
      const root = opened.session?.rootSessionId;
      const layers = layersOf(subject, request.rules, request.onlyRules);
      const ctx: PlanContext = {
        sessionId: request.sessionId,
        callId: "",
        agent,
        workspace: opened.workspace,
        environment: async () => ({}),
        reads: { get: async (path) => (root === undefined ? undefined : await store.getRead(root, path)) },
        judge: planning.judging(layers),
      };
      const repeats =
        opened.session === undefined || request.onlyRules
          ? 0
          : await store.repeatsOf(opened.session.id, digestOfRequest(tool.name, canonicalJson(input)));
      const judged = await planning
        .judge(tool, decode(tool, input), ctx, subject, repeats, {
          layers,
          grants: request.onlyRules ? "none" : "look",
        })
        .catch((cause: unknown) => {
          if (cause instanceof ToolFailure) return cause;
          throw cause;
        });
      // Nothing is known of what would be touched, which is never allowed.
      if (judged instanceof ToolFailure) {
        return {
          title: tool.name,
          verdict: { action: PermissionAction.ASK, decisions: [], unapproved: [] },
          asks: [],
          problem: judged,
        };
      }
      const { plan, verdict } = judged;
      const { preview: whole, problem } = await planning.inspect(judged, layers);
      const preview = whole && beginning(whole());
      const asked = verdict.action === PermissionAction.ASK ? verdict.unapproved : [];
      const digest = asked.length === 0 ? "" : await planning.digestOf(tool, input, plan, opened);
      const asks = asked.map((question) => {
        const metadata = plan.asks.find(({ permission }) => permission === question.permission)?.metadata;
        return permissions.request(
          { ...question, ...(metadata && { metadata }) },
          verdict.decisions,
          { sessionId: request.sessionId, agent, digest, expires: store.now() + askMs, preview },
          subject,
          "",
        );
      });
      return { title: plan.title, verdict, asks, ...(preview && { preview }), ...(problem && { problem }) };
    },

    /** Which rule decides, for each pattern as it is given: no path is resolved, no command analysed. */
    async explain(
      principal: Principal,
      request: ExplainPermissionRequest,
    ): Promise<{ action: PermissionAction; decisions: PermissionDecision[] }> {
      checkSize("patterns", request.patterns, 256 * 1024);
      const subject = ruleSubject(principal, await place(principal, request.sessionId), request.agent);
      const decisions = policy.explain(
        { permission: request.permission, patterns: request.patterns },
        layersOf(subject, request.rules, request.onlyRules),
      );
      return { action: decisions.length === 0 ? PermissionAction.ASK : strictest(decisions), decisions };
    },

    /** Every rule that holds for an agent in a session or a workspace: first the lists that count as one. */
    async rules(
      principal: Principal,
      { place: where, agent }: Pick<ListRulesRequest, "place" | "agent">,
    ): Promise<{ agent: string; workspace: string; lists: readonly LayerRules[] }> {
      const [sessionId, workspace] = where.case === "sessionId" ? [where.value, ""] : ["", where.value];
      const opened = await place(principal, sessionId, workspace);
      const subject = ruleSubject(principal, opened, agent);
      const { wide, narrow } = layersFor(subject);
      return { agent: subject.agent, workspace: opened.workspace.name, lists: [...wide, ...narrow] };
    },

    /** The permissions of which something can end in an ask of an agent, by the rules of the server alone. */
    asking: (agent: string): string[] =>
      policy.asking(layersFor({ session: undefined, ancestors: [], agent }), knownPermissions(registry.common())),

    /** The tools that an agent may see and that suit its model, with their schemas as that model's provider takes them. */
    async tools(
      principal: Principal,
      request: ListToolsRequest,
    ): Promise<{ tools: ToolDefinition[]; workspace: string }> {
      const opened = request.sessionId === "" ? undefined : await sessions.open(principal, request.sessionId, "read");
      const { session, ancestors = [] } = opened ?? {};
      const agent = sessions.agentFor(principal, request.agent, session);
      const workspace = workspaceRoot(opened?.workspace.name ?? "default");
      const place = opened && { workspace, directory: opened.workspace.directory };
      const layers = layersFor({ session, ancestors, agent, ...place });
      const offered = offeredTo(request, registry.list(workspace));
      const shown = offered.filter((tool) => isListed(tool, (permission) => policy.hides(layers, permission)));
      const tools = await Promise.all(
        shown.map(async ({ definition }) => {
          const { name: toolID, description, inputSchema = {} } = definition;
          const told = { description, parameters: structuredClone(inputSchema) };
          const left = await hooks.run("tool.definition", { toolID }, told).catch(refuse);
          return create(ToolDefinitionSchema, {
            ...definition,
            description: left.description,
            inputSchema: schemaFor(request, left.parameters),
          });
        }),
      );
      return { tools, workspace };
    },
  };
}

function refuse(cause: unknown): never {
  if (!(cause instanceof HookFailure)) throw cause;
  const { hook, plugin, message } = cause;
  throw new RequestError(ErrorReason.HOOK_FAILED, message, { hook, plugin }, { cause });
}

function decode(tool: Tool, input: PlanToolRequest["input"]): unknown {
  try {
    return tool.decode(input ?? {});
  } catch (cause) {
    if (!(cause instanceof InvalidInput)) throw cause;
    throw new RequestError(ErrorReason.INVALID_INPUT, cause.message, { tool: tool.name }, { cause });
  }
}
