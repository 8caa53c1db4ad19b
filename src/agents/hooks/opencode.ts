import type { JsonObject } from "@bufbuild/protobuf";
import { denialText } from "./claude.ts";
import { HookInputError, objectIn, optionalString, readObject, stringIn } from "./claude-hook.ts";
import {
  cutOutput,
  type DelegatedResult,
  type DelegatedUse,
  type DelegationContext,
  reportResult,
  requestDecision,
} from "./delegate.ts";

/** Message of our plugin for opencode about one use of a tool. */
export interface OpencodeHook {
  event: "before" | "after" | "failed";
  use: DelegatedUse;
  result: DelegatedResult;
  /** Root of the project, up to which opencode looks for its plugins. */
  root: string;
}

/** Dependencies of a hook of opencode. */
export interface OpencodeContext extends DelegationContext {
  /** Checks whether a tool is one of our own MCP server; the service judges its calls itself. */
  isOwnTool(tool: string): Promise<boolean>;
  /** Returns why a project may use no tool, if so. */
  refusalOf(directory: string, root: string): Promise<string | undefined>;
}

/** Reads the JSON of our plugin. */
export function readOpencodeHook(text: string): OpencodeHook {
  const hook = readObject(text);
  const event = stringIn(hook, "event");
  if (event !== "before" && event !== "after" && event !== "failed")
    throw new HookInputError(`event is "${event}", but only before, after and failed are handled`);
  const parent = optionalString(hook, "parent");
  return {
    event,
    use: {
      kind: "opencode",
      foreignSession: stringIn(hook, "session"),
      // A subagent has a session whose parent is that of the agent that started it.
      ...(parent !== "" && { foreignParent: parent, foreignAgent: optionalString(hook, "agent") }),
      foreignTool: stringIn(hook, "tool"),
      foreignCallId: stringIn(hook, "call"),
      input: objectIn(hook, "input"),
      cwd: stringIn(hook, "cwd"),
    },
    result: {
      result:
        event === "failed"
          ? { case: "error", value: cutOutput(optionalString(hook, "error")) }
          : { case: "output", value: cutOutput(optionalString(hook, "output")) },
      ...(typeof hook.exit === "number" && { exit: hook.exit }),
    },
    root: optionalString(hook, "root") || "/",
  };
}

/** Answers a hook with the JSON that our plugin expects. */
export async function answerOpencode(
  context: OpencodeContext,
  { event, use, result, root }: OpencodeHook,
): Promise<JsonObject> {
  if (event !== "before") {
    await reportResult(context, use, result);
    return {};
  }
  const refusal = await context.refusalOf(use.cwd ?? "", root);
  if (refusal !== undefined) return denyOpencode(refusal);
  if (await context.isOwnTool(use.foreignTool)) return { decision: "allow", input: use.input };
  const decision = await requestDecision(context, use);
  if (decision.case !== "begun") return denyOpencode(denialText(decision));
  return { decision: "allow", input: decision.value.input ?? {} };
}

/** Answers a hook that failed, or whose use is refused: nothing runs. */
export function denyOpencode(reason: string): JsonObject {
  return { decision: "deny", reason };
}

/** Returns the name that a tool of our MCP server has there; undefined for other tools. */
export function ownOpencodeTool(tool: string, mcpName: string): string | undefined {
  return tool.startsWith(`${mcpName}_`) ? tool.slice(mcpName.length + 1) : undefined;
}
