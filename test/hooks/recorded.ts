import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A hook as the real agent sent it, with the workspace in place of WORKSPACE. */
export interface RecordedHook {
  text: string;
  event: string;
  tool: string;
}

/** Reads what a real agent sent to its hooks; a file is named by agent and version. */
export function recordedLines(file: string, workspace: string): string[] {
  const lines = readFileSync(join(import.meta.dirname, "recorded", `${file}.jsonl`), "utf8");
  return lines.trim().replaceAll("WORKSPACE", workspace).split("\n");
}

/** Reads what the real Claude Code sent to its hooks: each tool that the mock model asked for, in order. */
export function recordedClaudeHooks(workspace: string): RecordedHook[] {
  return recordedLines("claude-2.1.330", workspace).map((text) => {
    const { hook_event_name: event, tool_name: tool } = JSON.parse(text);
    return { text, event, tool };
  });
}

/** Returns one recorded hook. */
export function recordedClaudeHook(workspace: string, event: string, tool: string): RecordedHook {
  const found = recordedClaudeHooks(workspace).find((hook) => hook.event === event && hook.tool === tool);
  if (found === undefined) throw new Error(`no ${event} of ${tool} was recorded`);
  return found;
}
