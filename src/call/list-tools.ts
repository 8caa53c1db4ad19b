import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type GetToolRequest,
  type ToolDefinition,
  ToolDefinitionSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { isListed } from "../policy/known-permissions.ts";
import { createMatchSteps, stepsPerMs } from "../policy/model.ts";
import { HookFailure } from "../tool/errors.ts";
import type { HookChain } from "../tool/hooks.ts";
import { offeredTo, type Registry, schemaFor } from "../tool/registry.ts";
import type { OfferContext, Tool } from "../tool/tool.ts";
import type { Planning } from "./decide.ts";
import { createToolJudge } from "./prepare.ts";
import type { Sessions } from "./sessions.ts";

interface ListToolsParts extends Pick<Planning, "layersFor" | "lines" | "policy"> {
  sessions: Sessions;
  registry: Registry;
  hooks: HookChain;
}

/** For whom tools are shown. */
export type ToolViewer = Pick<GetToolRequest, "agent" | "sessionId" | "providerId" | "modelId">;

/**
 * Lists the tools that an agent may see and that suit its model, with the schemas that the model's provider accepts; with `name`
 * only that one.
 */
export async function listTools(
  parts: ListToolsParts,
  principal: Principal,
  request: ToolViewer,
  name?: string,
): Promise<{ tools: ToolDefinition[]; workspace: string }> {
  const { layersFor, lines, policy, registry, sessions } = parts;
  lines.checkBudget(principal.id);
  const opened = request.sessionId === "" ? undefined : await sessions.open(principal, request.sessionId, "read");
  if (opened === undefined) sessions.checkWorkspace(principal, "default");
  const { session, ancestors = [] } = opened ?? {};
  const agent = sessions.agentFor(principal, request.agent, session);
  const workspace = workspaceRoot(opened?.workspace.name ?? "default");
  await registry.refresh(workspace);
  const steps = createMatchSteps();
  const layers = {
    ...layersFor({ session, ancestors, agent, ...(opened && { workspace, directory: opened.workspace.directory }) }),
    steps,
  };
  const suited = offeredTo(request, registry.list(workspace));
  const offered = name === undefined ? suited : suited.filter(({ definition }) => definition.name === name);
  const visible = offered.filter((tool) => isListed(tool, (permission) => policy.hides(layers, permission)));
  const offer: OfferContext = {
    ...{ agent, workspace, principal: session?.owner ?? principal.id },
    judge: createToolJudge(policy, () => layers),
  };
  const definitions = await Promise.all(visible.map((tool) => definitionFor(parts, request, tool, offer)));
  const tools = definitions.filter((definition) => definition !== undefined);
  lines.charge(principal.id, steps.used() / stepsPerMs);
  return { tools, workspace };
}

/** Returns a tool's definition for the requested model, with what it offers to the agent, as hooks rewrite it; undefined if that agent is not offered it. */
async function definitionFor(
  { hooks }: ListToolsParts,
  request: ToolViewer,
  tool: Tool,
  offer: OfferContext,
): Promise<ToolDefinition | undefined> {
  const { definition } = tool;
  const { name: toolID, inputSchema = {} } = definition;
  const described = tool.describe ? await tool.describe(offer) : definition.description;
  if (described === undefined) return undefined;
  const description = [described, await tool.offer?.(offer)].filter(Boolean).join("\n\n");
  const offered = { description, parameters: structuredClone(inputSchema) };
  const rewritten = await hooks.in(offer.workspace).run("tool.definition", { toolID }, offered).catch(refuse);
  return create(ToolDefinitionSchema, {
    ...definition,
    description: rewritten.description,
    inputSchema: schemaFor(request, rewritten.parameters),
  });
}

function refuse(cause: unknown): never {
  if (!(cause instanceof HookFailure)) throw cause;
  const { hook, plugin, message } = cause;
  throw new RequestError(ErrorReason.HOOK_FAILED, message, { hook, plugin }, { cause });
}
