import type { JsonObject } from "@bufbuild/protobuf";
import { denialText } from "./claude.ts";
import { HookInputError, objectIn, stringIn } from "./claude-hook.ts";
import { type DelegatedUse, isEdited, type UseDecision } from "./delegate.ts";

/** The key in `_meta` under which Claude Code names the use of a tool for which it calls an MCP server. */
const useIdKey = "claudecode/toolUseId";

/**
 * Reads what Claude Code sends to its permission prompt tool. Only Claude Code itself names the same use in the arguments and in
 * `_meta`: a model that calls the tool does not know the id of that call.
 */
export function readClaudePrompt(
  args: JsonObject,
  meta: Readonly<Record<string, unknown>>,
  place: { session: string; cwd: string },
): DelegatedUse {
  const useId = stringIn(args, "tool_use_id");
  if (meta[useIdKey] !== useId)
    throw new HookInputError("only Claude Code itself may ask here, with --permission-prompt-tool");
  return {
    kind: "claude",
    foreignSession: place.session,
    foreignTool: stringIn(args, "tool_name"),
    foreignCallId: useId,
    input: objectIn(args, "input"),
    cwd: place.cwd,
  };
}

/**
 * Answers the prompt. It never has `updatedPermissions`: rules in the agent's own files would be out of reach of policy and
 * revocation.
 */
export function claudePromptAnswer(use: DelegatedUse, decision: UseDecision): JsonObject {
  if (decision.case !== "begun") return { behavior: "deny", message: denialText(decision) };
  const input = decision.value.input ?? {};
  return { behavior: "allow", updatedInput: isEdited(use, input) ? input : use.input };
}

/** Arguments of the prompt tool. */
export const claudePromptSchema = {
  type: "object" as const,
  properties: {
    tool_name: { type: "string" },
    input: { type: "object" },
    tool_use_id: { type: "string" },
  },
  required: ["tool_name", "input", "tool_use_id"],
};
