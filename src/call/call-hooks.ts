import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ExpandedAsk } from "../policy/model.ts";
import type { WorkspaceHooks } from "../tool/hooks.ts";
import type { Plan } from "../tool/tool.ts";
import { inputOf } from "./state.ts";

/** Title, output and metadata of an ended call, as people and models see them. */
export interface Shown {
  title: string;
  output: string;
  metadata: JsonObject;
}

/** Answers of hooks to one call, stored with it as JSON. */
interface HookAnswers {
  /** Environment by working directory. */
  environments: Record<string, Record<string, string>>;
  /** Decisions on asks, by `askKey`. */
  answers: Record<string, "ask" | "allow" | "deny">;
}

/** Hooks of one call. Hooks that run before the body run once per call: their answers are stored, for whichever replica runs it. */
export interface CallHooks {
  readonly chain: WorkspaceHooks;
  readonly call: { tool: string; sessionID: string; callID: string };
  readonly messageId: string;
  readonly answered: HookAnswers;
  /** The answers as stored last. */
  stored: string | undefined;
  store(answers: string): Promise<void>;
  /** Id and time that a hook gets for an ask that is not open yet. */
  newId(): string;
  now(): number;
}

/** Creates the hooks of a call from its stored answers. */
export function createCallHooks(
  chain: WorkspaceHooks,
  { tool, sessionId, messageId, callId }: ToolPart,
  { stored, ...steps }: Pick<CallHooks, "store" | "newId" | "now"> & { stored: string | undefined },
): CallHooks {
  return {
    ...steps,
    chain,
    call: { tool, sessionID: sessionId, callID: callId },
    messageId,
    answered: { environments: {}, answers: {}, ...(stored && JSON.parse(stored)) },
    stored,
  };
}

/** Returns the input as before hooks rewrite it; undefined without such hooks. */
export async function inputAfterHooks({ chain, call }: CallHooks, input: JsonObject): Promise<JsonObject | undefined> {
  if (!chain.has("tool.execute.before")) return undefined;
  return (await chain.run("tool.execute.before", call, { args: structuredClone(input) })).args;
}

/** Returns the variables that hooks add to the environment of commands in a directory. */
export async function hookEnvironment(hooks: CallHooks, cwd: string): Promise<Record<string, string>> {
  const { chain, call, answered } = hooks;
  const known = answered.environments[cwd];
  if (known === undefined && !chain.has("shell.env")) return {};
  const about = { cwd, sessionID: call.sessionID, callID: call.callID };
  const env = known ?? (await chain.run("shell.env", about, { env: {} })).env;
  answered.environments[cwd] = env;
  await storeAnswers(hooks);
  return env;
}

/** True if a hook has allowed the ask of this plan. */
export function isAllowedByHooks({ answered }: CallHooks, digest: string, ask: ExpandedAsk): boolean {
  return answered.answers[askKey(digest, ask)] === "allow";
}

/** Returns the decision of hooks on an ask, before approvers are asked. */
export async function decideByHooks(
  hooks: CallHooks,
  digest: string,
  ask: ExpandedAsk,
  plan: Plan,
): Promise<"ask" | "allow" | "deny"> {
  const { chain, call, messageId, answered, newId, now } = hooks;
  const key = askKey(digest, ask);
  const known = answered.answers[key];
  if (known !== undefined) {
    await storeAnswers(hooks);
    return known;
  }
  if (!chain.has("permission.ask")) return "ask";
  const { permission, patterns } = ask;
  const metadata = plan.asks.find((planned) => planned.permission === permission)?.metadata;
  const about = { id: newId(), type: permission, pattern: [...patterns], messageID: messageId, title: plan.title };
  const { sessionID, callID, tool } = call;
  const { status } = await chain.run(
    "permission.ask",
    { ...about, sessionID, callID, metadata: { ...metadata, tool }, time: { created: now() } },
    { status: "ask" },
  );
  answered.answers[key] = status;
  await storeAnswers(hooks);
  return status;
}

/** Step 11, after hooks: returns what they leave of the result or the error. The sizes of the output stay as they are. */
export async function runAfterHooks(
  { chain, call }: CallHooks,
  part: ToolPart,
  status: "completed" | "error",
  shown: Shown,
): Promise<Shown> {
  if (!chain.has("tool.execute.after")) return shown;
  const args = structuredClone(inputOf(part));
  const left = await chain.run("tool.execute.after", { ...call, args, status }, structuredClone(shown));
  const { truncated, originalSize, truncatedSize, outputPath } = shown.metadata;
  const sizes = Object.entries({ truncated, originalSize, truncatedSize, outputPath });
  const fixed = sizes.flatMap(([name, value]) => (value === undefined ? [] : [[name, value] as const]));
  return { title: left.title, output: left.output, metadata: { ...left.metadata, ...Object.fromEntries(fixed) } };
}

/** Stores the answers before anything relies on them, so that a replica that claims the call does not run the hooks again. */
async function storeAnswers(hooks: CallHooks): Promise<void> {
  const text = JSON.stringify(hooks.answered);
  if (text === hooks.stored) return;
  await hooks.store(text);
  hooks.stored = text;
}

/** Key of an answer, which holds for this ask of this plan only. */
function askKey(digest: string, { permission, patterns }: ExpandedAsk): string {
  return JSON.stringify([digest, permission, patterns]);
}
