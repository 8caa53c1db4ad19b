import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { CallRef } from "../core/call-ref.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { ExpandedAsk, Layers } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import { similar } from "../tool/similar.ts";
import type { Judge, Judgement, PlanContext, Tool } from "../tool/tool.ts";
import { inputAfterHooks } from "./call-hooks.ts";
import { allowedRecord, pauseIfUnavailable, refreshCall } from "./call-record.ts";
import { type CallQuestion, decideCall, maxRepeats, type Planning } from "./decide.ts";
import { CallEnd, staleText } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord, ToolMemory } from "./ports.ts";
import { placeFor, type Ready, type Running, subjectFor } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { inputOf, prepared, running } from "./state.ts";
import { checkStopped } from "./stops.ts";
import { findDefinition } from "./waiting.ts";

/** A call before or after it was accepted. */
type Described = Pick<CallRecord, "ref" | "part" | "spec">;

/**
 * Takes the steps up to the decision for a call that is about to be accepted: a call that rules allow without an ask or a
 * grant is accepted and started in one step. Returns undefined for any other call; `runCall` then takes the steps one by one.
 */
export async function prepareStart(engine: Engine, call: Described, opened: OpenSession): Promise<Ready | undefined> {
  const { hooks, store } = engine;
  // These hooks run once, and the input they leave is stored before it is planned.
  if (hooks.has("tool.execute.before", "shell.env")) return undefined;
  try {
    const tool = resolveTool(engine, call, opened);
    // Only the step that accepts the call knows its repeats: it checks `maxRepeats`.
    const question = questionOf(engine, { ...call, repeats: 0 }, opened, tool);
    const decision = await decideCall(engine, question, { grants: "none" });
    if (decision.verdict.action !== PermissionAction.ALLOW) return undefined;
    if ((await decision.view()).problem) return undefined;
    return {
      ...{ ...question, ...decision },
      start: running(call.part, decision.plan, store.now()),
      decision: allowedRecord(call, decision),
      maxRepeats,
    };
  } catch {
    return undefined;
  }
}

/** Step 1, resolve: returns the registration that serves now. Later registrations do not affect the call. */
export function resolveTool(engine: Engine, call: Described, opened: OpenSession): Tool {
  const { foreign, registry } = engine;
  const { part, spec } = call;
  const workspace = workspaceRoot(opened.workspace.name);
  checkStopped(engine, opened, part);
  checkGuards(registry, workspace);
  const tool = spec.delegated ? foreign.tool(part.tool, spec.delegated) : findDefinition(engine, call, workspace);
  if (!tool) {
    const known = registry.list(workspace).map(({ name }) => name);
    const [meant] = similar(part.tool, known, 1);
    const hint = meant === undefined ? "" : ` Did you mean "${meant}"?`;
    throw new CallEnd(
      ToolErrorReason.UNKNOWN_TOOL,
      `There is no tool "${part.tool}".${hint} Use one of: ${known.join(", ")}.`,
    );
  }
  if (spec.definitionId !== "" && spec.definitionId !== tool.definition.definitionId) {
    throw new CallEnd(ToolErrorReason.STALE_TOOL, staleText(part.tool));
  }
  return tool;
}

/** Throws the end of a call in a workspace whose plugins are not all loaded: they may guard it. */
export function checkGuards(registry: Engine["registry"], workspace: string): void {
  const problem = registry.guardProblem(workspace);
  if (problem !== undefined) throw new CallEnd(ToolErrorReason.GUARD_NOT_LOADED, notGuarded(problem));
}

/** Makes the error of a call that a plugin may guard that is not loaded. */
export const notGuarded = (problem: string) => `Nothing was run: ${problem}.`;

/** Step 2, before hooks: runs them once and stores the input that they leave, so that every replica plans with the same input. */
export async function runBeforeHooks(engine: Engine, call: Running): Promise<void> {
  const { part, prepared: isPrepared } = call.record;
  if (isPrepared || part.state.case !== "pending") return;
  const input = inputOf(part);
  const args = await inputAfterHooks(call.hooks, input);
  if (args === undefined) return;
  const changed = canonicalJson(args) === canonicalJson(input) ? undefined : prepared(part, args);
  const step = { fence: call.fence, part: changed };
  const store = () => engine.store.prepareCall(step).catch((cause: unknown) => pauseIfUnavailable(engine, call, cause));
  while ((await store()) === undefined);
  await refreshCall(engine, call);
}

/** Step 3, decode: throws for input that does not fit the tool's schema, so that it never reaches the tool. */
export function decodeInput({ limits }: Engine, tool: Tool, { part, spec }: Described): unknown {
  if (spec.timeoutMs > limits.maxTimeoutMs) {
    throw new CallEnd(
      ToolErrorReason.INVALID_INPUT,
      `timeout_ms is ${spec.timeoutMs}, over the limit of ${limits.maxTimeoutMs}. Use a shorter one.`,
    );
  }
  return tool.decode(inputOf(part));
}

/** Puts the question that decides on a call; throws for input that does not fit the tool. */
export function questionOf(
  engine: Engine,
  call: Described & Pick<CallRecord, "repeats">,
  opened: OpenSession,
  tool: Tool,
  environment: PlanContext["environment"] = noEnvironment,
): CallQuestion {
  const { part, repeats, spec } = call;
  return {
    tool,
    subject: subjectFor(opened, part.agent, tool),
    principal: spec.principal,
    ...{ request: inputOf(part), repeats },
    input: decodeInput(engine, tool, call),
    ctx: planContext(engine, aboutCall(call, tool), opened, environment),
  };
}

/** Returns what the context of a call names. */
export function aboutCall({ ref, part }: Described, { name: tool }: Tool) {
  return { ...ref, agent: part.agent, call: { tool, input: inputOf(part) } };
}

/** Context in which a tool plans a call. */
export function planContext(
  { layersFor, policy, store }: Pick<Planning, "layersFor" | "policy"> & { store: Pick<ToolMemory, "getRead"> },
  {
    sessionId,
    callId,
    root,
    agent,
    ...judged
  }: Omit<CallRef, "root"> & { root?: string | undefined; agent: string } & Pick<ExpandedAsk, "call">,
  opened: Parameters<typeof placeFor>[0],
  environment: PlanContext["environment"],
): PlanContext {
  return {
    ...{ environment, sessionId, callId, agent, workspace: opened.workspace },
    reads: { get: async (path) => (root === undefined ? undefined : await store.getRead(root, path)) },
    judge: createToolJudge(policy, () => layersFor(placeFor(opened, agent)), judged),
  };
}

/** Environment of a call without hooks. */
export const noEnvironment = async () => ({});

/** Creates the function with which a tool evaluates the rules of its call. They are collected when it first does: most do not. `call` is for conditions. */
export function createToolJudge(
  policy: Pick<Policy, "judge" | "readDoubts" | "fileRules">,
  collect: () => Layers,
  call: Pick<ExpandedAsk, "call"> = {},
): Judge {
  let collected: Layers | undefined;
  const layers = () => (collected ??= collect());
  const judge = (ask: Ask): Judgement => {
    const decisions = policy.judge({ ...ask, ...call }, layers());
    const action = strictest(decisions);
    const { reason = "", rule } = decisions.find((decision) => decision.action === action) ?? {};
    return { action: wordFor(action), reason, ...(rule && { rule: rule.pattern }) };
  };
  return Object.assign(judge, {
    restrictedNameHints: (place: ReadPlace) => policy.readDoubts(place, layers()),
    fileRules: () => policy.fileRules(layers()),
  });
}

function wordFor(action: PermissionAction): Judgement["action"] {
  if (action === PermissionAction.ALLOW) return "allow";
  return action === PermissionAction.DENY ? "deny" : "ask";
}
