import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";
import type { ClaudeHook } from "./claude-hook.ts";
import {
  cutOutput,
  type DelegatedResult,
  type DelegatedUse,
  type HookContext,
  isEdited,
  recentDecision,
  reportResult,
  requestDecision,
  type UseDecision,
} from "./delegate.ts";

/** Answers a hook with the JSON that Claude Code expects. */
export async function answerClaude(context: HookContext, hook: ClaudeHook): Promise<JsonObject> {
  switch (hook.event) {
    case "PreToolUse":
      if (await context.isOwnTool(hook.tool))
        return preToolUse("allow", "This is a tool of Toolgate, which judges the call itself.");
      return await preToolUseAnswer(context, hook);
    case "PermissionRequest": {
      const use = useOf(hook);
      const recent = await recentDecision(context, use, maxDecisionAgeMs);
      return permissionAnswer(use, recent ?? (await requestDecision(context, use)));
    }
    default:
      await reportResult(context, useOf(hook), resultOf(hook));
      return {};
  }
}

/** Answers a hook that failed: nothing runs. Of a tool that ran already only the person is informed. */
export function denyClaude(event: string, reason: string): JsonObject {
  if (event === "PermissionRequest") return permissionRequest({ behavior: "deny", message: reason });
  if (event.startsWith("PostToolUse")) return { systemMessage: reason };
  return preToolUse("deny", reason);
}

/** Returns the name that a tool of our MCP server has there; undefined for other tools. */
export function ownClaudeTool(tool: string, mcpName: string): string | undefined {
  const prefix = `mcp__${mcpName}__`;
  return tool.startsWith(prefix) ? tool.slice(prefix.length) : undefined;
}

/** Returns the key under which a deferred use is remembered, for the program that resumes it. */
export function deferredKey(sessionId: string, useId: string): string {
  return JSON.stringify(["claude", sessionId, "deferred", useId]);
}

/** Returns the key under which a program that resumes a session announces itself, every few seconds. */
export function resumerKey(sessionId: string): string {
  return JSON.stringify(["claude", sessionId, "resumer"]);
}

/** Describes why a call does not run, for the model. */
export function denialText(decision: Exclude<UseDecision, { case: "begun" }>): string {
  return decision.case === "refused" ? decision.value.message : notAnswered;
}

/** A use that waits is deferred only if a program will resume the session: Claude Code ends then. */
async function preToolUseAnswer(context: HookContext, hook: ClaudeHook): Promise<JsonObject> {
  const { memory } = context;
  const resumer = await memory.get(resumerKey(hook.sessionId));
  const defers = resumer !== undefined && resumer.ageMs < maxResumerAgeMs;
  const endsAt = defers ? Math.min(context.endsAt, performance.now() + deferMs) : context.endsAt;
  const decision = await requestDecision({ ...context, endsAt }, useOf(hook));
  if (decision.case === "waiting" && defers) {
    await memory.put(deferredKey(hook.sessionId, hook.useId), decision);
    return preToolUse("defer", "No approver has answered yet.");
  }
  if (decision.case !== "begun") return preToolUse("deny", denialText(decision));
  const input = decision.value.input ?? {};
  return preToolUse("allow", "Allowed by Toolgate.", isEdited(useOf(hook), input) ? { updatedInput: input } : {});
}

function permissionAnswer(use: DelegatedUse, decision: UseDecision): JsonObject {
  if (decision.case !== "begun") return permissionRequest({ behavior: "deny", message: denialText(decision) });
  const input = decision.value.input ?? {};
  return permissionRequest({ behavior: "allow", ...(isEdited(use, input) && { updatedInput: input }) });
}

function preToolUse(permissionDecision: string, permissionDecisionReason: string, more: JsonObject = {}): JsonObject {
  return {
    hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision, permissionDecisionReason, ...more },
  };
}

/** Never has `updatedPermissions`: rules in the agent's own files would be out of reach of policy and revocation. */
function permissionRequest(decision: JsonObject): JsonObject {
  return { hookSpecificOutput: { hookEventName: "PermissionRequest", decision } };
}

/** A subagent has a session below that of the agent that started it; sessions of two subagents of one type differ. */
function useOf({ sessionId, agent, agentId, tool, useId, input, cwd, permissionMode }: ClaudeHook): DelegatedUse {
  const session =
    agentId === ""
      ? { foreignSession: sessionId }
      : { foreignSession: `${sessionId}/${agentId}`, foreignParent: sessionId, foreignAgent: agent };
  return { kind: "claude", ...session, foreignTool: tool, foreignCallId: useId, input, cwd, permissionMode };
}

function resultOf({ event, tool, response, error, durationMs }: ClaudeHook): DelegatedResult {
  const metadata: JsonObject = durationMs === undefined ? {} : { duration_ms: durationMs };
  if (event === "PostToolUse") {
    const output = cutOutput(resultText(response));
    return { result: { case: "output", value: output }, metadata, ...(isEndedCommand(tool, response) && { exit: 0 }) };
  }
  const exit = /^Exit code (\d+)/.exec(error)?.[1];
  return {
    result: { case: "error", value: cutOutput(error) },
    metadata,
    ...(exit !== undefined && { exit: Number(exit) }),
  };
}

/** A command that runs in the background has no exit code yet. */
function isEndedCommand(tool: string, response: JsonValue | undefined): boolean {
  return tool === "Bash" && !JSON.stringify(response).includes('"backgroundTaskId"');
}

/** Time after which a use that waits is deferred. */
const deferMs = 20_000;
/** Age up to which the program that resumes the session is taken to run. */
const maxResumerAgeMs = 30_000;
const notAnswered = "not answered yet; if it is approved later, repeat the same call";
/** Age up to which PermissionRequest takes the decision of PreToolUse about the same use. */
const maxDecisionAgeMs = 60_000;

/**
 * Returns the text of a tool's result: what a command printed, the content of a file that was read, the changed lines of an edit,
 * the text items of a list of content, otherwise the JSON.
 */
function resultText(response: JsonValue | undefined): string {
  if (typeof response === "string") return response;
  if (typeof response !== "object" || response === null) return JSON.stringify(response ?? "");
  const content = Array.isArray(response) ? response : response.content;
  const texts = Array.isArray(content) ? content.map(textItem) : [];
  if (texts.length > 0 && texts.every((text) => text !== undefined)) return texts.join("\n");
  if (Array.isArray(response)) return JSON.stringify(response);
  return printedText(response) ?? fileText(response) ?? changedLines(response) ?? JSON.stringify(response);
}

function printedText({ stdout, stderr }: JsonObject): string | undefined {
  if (typeof stdout !== "string") return undefined;
  return [stdout, stderr].filter((text) => typeof text === "string" && text !== "").join("\n");
}

function fileText({ file }: JsonObject): string | undefined {
  return isObject(file) && typeof file.content === "string" ? file.content : undefined;
}

/** The whole file before and after, which the result also has, would be repeated for each edit. */
function changedLines({ filePath, structuredPatch }: JsonObject): string | undefined {
  if (typeof filePath !== "string" || !Array.isArray(structuredPatch)) return undefined;
  const lines = structuredPatch.flatMap((hunk) => {
    if (!isObject(hunk) || !Array.isArray(hunk.lines)) return [];
    const { oldStart, oldLines, newStart, newLines } = hunk;
    return [`@@ -${oldStart},${oldLines} +${newStart},${newLines} @@`, ...hunk.lines.map(String)];
  });
  return [filePath, ...lines].join("\n");
}

function textItem(item: JsonValue): string | undefined {
  return isObject(item) && item.type === "text" && typeof item.text === "string" ? item.text : undefined;
}
