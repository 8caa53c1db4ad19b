import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";

/** Events of Claude Code for which it asks or reports here. */
const claudeEvents = ["PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"] as const;

/** Message of Claude Code to a hook about one use of a tool. */
export interface ClaudeHook {
  event: (typeof claudeEvents)[number];
  sessionId: string;
  /** The type and the id of the subagent that uses the tool; empty for the main agent. */
  agent: string;
  agentId: string;
  cwd: string;
  permissionMode: string;
  tool: string;
  input: JsonObject;
  /** Id of the use; PermissionRequest has none. */
  useId: string;
  /** Result of the tool; only of PostToolUse. */
  response: JsonValue | undefined;
  /** Failure of the tool; only of PostToolUseFailure. */
  error: string;
  durationMs: number | undefined;
}

/** Input of a hook that is not what the agent documents. */
export class HookInputError extends Error {
  override name = "HookInputError";
}

/** Reads the JSON that Claude Code passes to a hook. */
export function readClaudeHook(text: string): ClaudeHook {
  const hook = readObject(text);
  const name = stringIn(hook, "hook_event_name");
  const event = claudeEvents.find((each) => each === name);
  if (event === undefined)
    throw new HookInputError(`hook_event_name is "${name}", but only ${claudeEvents.join(", ")} are handled`);
  return {
    event,
    sessionId: stringIn(hook, "session_id"),
    agent: optionalString(hook, "agent_type"),
    agentId: optionalString(hook, "agent_id"),
    cwd: stringIn(hook, "cwd"),
    permissionMode: optionalString(hook, "permission_mode"),
    tool: stringIn(hook, "tool_name"),
    input: objectIn(hook, "tool_input"),
    useId: event === "PermissionRequest" ? "" : stringIn(hook, "tool_use_id"),
    response: hook.tool_response,
    error: optionalString(hook, "error"),
    durationMs: typeof hook.duration_ms === "number" ? hook.duration_ms : undefined,
  };
}

/** Reads a text that must be a JSON object. */
export function readObject(text: string): JsonObject {
  let value: JsonValue;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new HookInputError("the input of the hook is not JSON", { cause });
  }
  if (isObject(value)) return value;
  throw new HookInputError("the input of the hook is not a JSON object");
}

/** Returns a field that must be a text that is not empty. */
export function stringIn(object: JsonObject, field: string): string {
  const value = object[field];
  if (typeof value === "string" && value !== "") return value;
  throw new HookInputError(`the input of the hook has no ${field}`);
}

/** Returns a field that must be a JSON object. */
export function objectIn(object: JsonObject, field: string): JsonObject {
  const value = object[field];
  if (value !== undefined && isObject(value)) return value;
  throw new HookInputError(`the input of the hook has no ${field}`);
}

/** Returns a field that is a text, otherwise an empty one. */
export function optionalString(object: JsonObject, field: string): string {
  const value = object[field];
  return typeof value === "string" ? value : "";
}
