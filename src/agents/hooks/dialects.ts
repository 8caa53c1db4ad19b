import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { canonicalJson, isObject } from "../../core/json.ts";
import { sha256Hex } from "../../core/sha256.ts";
import { denialText } from "./claude.ts";
import { HookInputError, objectIn, optionalString, readObject, stringIn } from "./claude-hook.ts";
import {
  cutOutput,
  type DelegatedResult,
  type DelegatedUse,
  type HookContext,
  isEdited,
  rememberLast,
  reportResult,
  requestDecision,
} from "./delegate.ts";

/** Message of an agent to a hook about one use of a tool. */
export interface ToolHook {
  /** True if the tool has not run yet. */
  readonly isBefore: boolean;
  readonly use: DelegatedUse;
  readonly result: DelegatedResult;
  /** Root of the project, up to which the agent loads code that could change what was approved; absent if it loads none. */
  readonly root?: string;
}

/** Dependencies of a hook in a dialect. */
export interface DialectContext extends HookContext {
  /** Returns why a project may use no tool, if so. */
  refusalOf(directory: string, root: string): Promise<string | undefined>;
}

/** The form in which one agent sends a hook and takes its answer. */
export interface Dialect {
  /** True if the agent identifies its uses of tools. */
  readonly hasIds: boolean;
  /** Reads the JSON that the agent passes to a hook. */
  read(text: string): ToolHook;
  /** Lets the tool run; undefined where the agent wants no answer for that. */
  allowed(use: DelegatedUse): JsonObject | undefined;
  /** Lets the tool run with another input; undefined if the agent would not run exactly this one. */
  edited(use: DelegatedUse, input: JsonObject): JsonObject | undefined;
  /** Refuses the tool. Always with a reason: without one some agents run it. */
  denied(reason: string): JsonObject;
  /** The answer to a hook after the tool; absent where the agent wants none. */
  readonly reported?: JsonObject;
  /** Returns the name that a tool of our MCP server has there; undefined for other tools. */
  ownToolName(tool: string, mcpName: string): string | undefined;
}

/** Answers a hook: undefined if the agent wants no answer. */
export async function answerTool(
  dialect: Dialect,
  context: DialectContext,
  { isBefore, use, result, root }: ToolHook,
): Promise<JsonObject | undefined> {
  if (!isBefore) {
    await reportResult(context, use, result);
    return dialect.reported;
  }
  const refusal = root === undefined ? undefined : await context.refusalOf(use.cwd ?? "", root);
  if (refusal !== undefined) return dialect.denied(refusal);
  if (await context.isOwnTool(use.foreignTool)) return dialect.allowed(use);
  const decision = await requestDecision(context, use);
  if (decision.case !== "begun") return dialect.denied(denialText(decision));
  if (!dialect.hasIds) await rememberLast(context, use, decision);
  const { assignment, input = {} } = decision.value;
  if (!isEdited(use, input)) return dialect.allowed(use);
  const edited = dialect.edited(use, input);
  if (edited !== undefined) return edited;
  const value = `an approver changed the input, which this agent cannot take over; repeat it as ${canonicalJson(input)}`;
  await context.calls.finish({ assignment, result: { case: "error", value: `nothing was run: ${value}` } });
  return dialect.denied(value);
}

const prefixed = (prefix: string) => (tool: string) =>
  tool.startsWith(prefix) ? tool.slice(prefix.length) : undefined;

/** Codex. It names the command that runs, with the directory as that of the agent, and the model's ID of the use. */
export const codex: Dialect = {
  hasIds: true,
  read(text) {
    const hook = readObject(text);
    const isBefore = eventOf(hook, "hook_event_name", ["PreToolUse", "PostToolUse"]) === "PreToolUse";
    const [foreignTool, input] = [stringIn(hook, "tool_name"), objectIn(hook, "tool_input")];
    const [session, agentId] = [stringIn(hook, "session_id"), optionalString(hook, "agent_id")];
    const foreignAgent = optionalString(hook, "agent_type");
    const ids = {
      ...(agentId === ""
        ? { foreignSession: session }
        : { foreignSession: `${session}/${agentId}`, foreignParent: session, foreignAgent }),
      foreignCallId: stringIn(hook, "tool_use_id"),
    };
    const use = { kind: "codex", ...ids, foreignTool, input, cwd: stringIn(hook, "cwd") };
    return { isBefore, use, result: outputOf(hook.tool_response) };
  },
  // It reports an answer that only allows as a failure of the hook.
  allowed: () => undefined,
  edited: ({ foreignTool }, updatedInput) =>
    foreignTool === "Bash" ? preToolUse({ permissionDecision: "allow", updatedInput }) : undefined,
  denied: (reason) => preToolUse({ permissionDecision: "deny", permissionDecisionReason: reason }),
  ownToolName: (tool, mcpName) => prefixed(`mcp__${mcpName}__`)(tool),
};

const preToolUse = (fields: JsonObject): JsonObject => ({
  hookSpecificOutput: { hookEventName: "PreToolUse", ...fields },
});

/** Gemini CLI. It has no ID of a use. */
export const gemini: Dialect = {
  hasIds: false,
  read(text) {
    const hook = readObject(text);
    const isBefore = eventOf(hook, "hook_event_name", ["BeforeTool", "AfterTool"]) === "BeforeTool";
    const [foreignSession, cwd] = [stringIn(hook, "session_id"), stringIn(hook, "cwd")];
    const [foreignTool, input] = [stringIn(hook, "tool_name"), objectIn(hook, "tool_input")];
    const foreignCallId = isBefore ? idOf([foreignSession, stringIn(hook, "timestamp"), foreignTool, input]) : "";
    const response = isObject(hook.tool_response) ? hook.tool_response : {};
    const { error, llmContent } = response;
    const result: DelegatedResult = isObject(error)
      ? { result: { case: "error", value: cutOutput(textOf(error.message ?? error)) } }
      : outputOf(llmContent);
    return { isBefore, use: { kind: "gemini", foreignSession, foreignCallId, foreignTool, input, cwd }, result };
  },
  allowed: () => ({ decision: "allow" }),
  // It keeps each field that the answer does not have.
  edited: (use, input) =>
    Object.keys(use.input).every((key) => key in input)
      ? { decision: "allow", hookSpecificOutput: { tool_input: input } }
      : undefined,
  denied: (reason) => ({ decision: "deny", reason }),
  ownToolName: (tool, mcpName) => prefixed(`mcp_${mcpName}_`)(tool),
};

/** GitHub Copilot CLI. It has no ID of a use. */
export const copilot: Dialect = {
  hasIds: false,
  read(text) {
    const hook = readObject(text);
    // The event is not named: only a hook after the tool has its result.
    const isBefore = !isObject(hook.toolResult) && typeof hook.error !== "string";
    const foreignTool = stringIn(hook, "toolName");
    const [foreignSession, cwd] = [stringIn(hook, "sessionId"), stringIn(hook, "cwd")];
    const input = objectIn(hook, "toolArgs");
    const foreignCallId = isBefore ? idOf([foreignSession, hook.timestamp ?? "", foreignTool, input]) : "";
    const { resultType, textResultForLlm = "" } = isObject(hook.toolResult) ? hook.toolResult : {};
    const value = cutOutput(textOf(hook.error ?? textResultForLlm));
    const result = { case: resultType === "success" ? ("output" as const) : ("error" as const), value };
    const use = { kind: "copilot", foreignSession, foreignCallId, foreignTool, input, cwd };
    return { isBefore, use, result: { result } };
  },
  allowed: () => ({ permissionDecision: "allow", permissionDecisionReason: "Allowed by Toolgate." }),
  edited: (_use, modifiedArgs) => ({ permissionDecision: "allow", modifiedArgs }),
  denied: (reason) => ({ permissionDecision: "deny", permissionDecisionReason: reason }),
  ownToolName: (tool, mcpName) => prefixed(`${mcpName}-`)(tool),
};

/** Opencode, by the messages of our plugin. */
export const opencode: Dialect = {
  hasIds: true,
  read(text) {
    const hook = readObject(text);
    const event = eventOf(hook, "event", ["before", "after", "failed"]);
    const parent = optionalString(hook, "parent");
    const use = {
      kind: "opencode",
      foreignSession: stringIn(hook, "session"),
      // A subagent has a session whose parent is that of the agent that started it.
      ...(parent !== "" && { foreignParent: parent, foreignAgent: optionalString(hook, "agent") }),
      foreignTool: stringIn(hook, "tool"),
      foreignCallId: stringIn(hook, "call"),
      input: objectIn(hook, "input"),
      cwd: stringIn(hook, "cwd"),
    };
    const exit = typeof hook.exit === "number" ? { exit: hook.exit } : {};
    const result: DelegatedResult["result"] =
      event === "failed"
        ? { case: "error", value: cutOutput(optionalString(hook, "error")) }
        : { case: "output", value: cutOutput(optionalString(hook, "output")) };
    const root = optionalString(hook, "root") || "/";
    return { isBefore: event === "before", use, result: { result, ...exit }, root };
  },
  allowed: ({ input }) => ({ decision: "allow", input }),
  edited: (_use, input) => ({ decision: "allow", input }),
  denied: (reason) => ({ decision: "deny", reason }),
  reported: {},
  ownToolName: (tool, mcpName) => prefixed(`${mcpName}_`)(tool),
};

function eventOf(hook: JsonObject, field: string, known: readonly string[]): string {
  const name = stringIn(hook, field);
  if (known.includes(name)) return name;
  throw new HookInputError(
    `${field} is "${name}", but only ${known.slice(0, -1).join(", ")} and ${known.at(-1)} are handled`,
  );
}

/** Makes the ID of a use that the agent does not identify. A repeated hook of one use has the same time. */
const idOf = (parts: JsonValue): string => `use_${sha256Hex(canonicalJson(parts)).slice(0, 24)}`;

const textOf = (value: JsonValue | undefined): string =>
  typeof value === "string" ? value : JSON.stringify(value ?? "");

const outputOf = (value: JsonValue | undefined): DelegatedResult => ({
  result: { case: "output", value: cutOutput(textOf(value)) },
});
