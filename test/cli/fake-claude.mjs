#!/usr/bin/env node
// Stands in for Claude Code: asks the model, runs the PreToolUse hooks of the user's settings as the real one does, then the tool.
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { ANTHROPIC_BASE_URL, CLAUDE_CONFIG_DIR, HOME } = process.env;
const text = (...names) => ({
  type: "object",
  required: names,
  properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
});
const tools = [
  { name: "Bash", input_schema: text("command") },
  { name: "Write", input_schema: text("file_path", "content") },
  { name: "Silent", input_schema: text("file_path") },
  { name: "CronCreate", input_schema: text("cron", "prompt") },
  { name: "TaskStop", input_schema: text() },
  { name: "mcp__tg_1__bash", input_schema: text("command") },
];
const run = {
  Bash: ({ command }) => execFileSync("sh", ["-c", command]).toString(),
  Write: ({ file_path, content }) => writeFileSync(file_path, content),
  CronCreate: () => "scheduled",
  Late: () => "late",
  // A tool that never reaches a hook.
  Silent: ({ file_path }) => writeFileSync(file_path, "silent"),
};

/** What it refuses before the hooks, as the real one does. */
function invalid(name, { cron }) {
  if (name === "TaskStop") return "Missing required parameter:\n task_id";
  if (name === "CronCreate" && cron.split(" ").length !== 5) return `Invalid cron expression '${cron}'`;
}

function settings() {
  try {
    return JSON.parse(readFileSync(join(CLAUDE_CONFIG_DIR ?? join(HOME, ".claude"), "settings.json"), "utf8"));
  } catch {
    return {};
  }
}

function refusalOf(id, name, input) {
  for (const { hooks } of name === "Silent" ? [] : (settings().hooks?.PreToolUse ?? [])) {
    for (const { command } of hooks) {
      const hook = {
        hook_event_name: "PreToolUse",
        session_id: "fake",
        cwd: process.cwd(),
        permission_mode: "default",
      };
      const stdin = JSON.stringify({ ...hook, tool_name: name, tool_input: input, tool_use_id: id });
      const { status, stdout, stderr } = spawnSync("sh", ["-c", command], { input: stdin });
      if (status === 2) return stderr.toString();
      const answer = JSON.parse(stdout.toString()).hookSpecificOutput;
      if (answer.permissionDecision !== "allow") return answer.permissionDecisionReason ?? "denied";
    }
  }
}

const messages = [{ role: "user", content: process.argv[3] }];
for (;;) {
  // The real one offers some tools only after it has reached a server.
  const offered = messages.length === 1 ? tools : [...tools, { name: "Late", input_schema: text("file_path") }];
  const body = JSON.stringify({ model: "fake", messages, tools: offered });
  const events = await (await fetch(`${ANTHROPIC_BASE_URL}/v1/messages`, { method: "POST", body })).text();
  const parts = [...events.matchAll(/^data: (.*)$/gm)].map(([, json]) => JSON.parse(json));
  const block = parts.find(({ type }) => type === "content_block_start").content_block;
  if (block.type !== "tool_use") break;
  const input = JSON.parse(parts.find(({ type }) => type === "content_block_delta").delta.partial_json);
  messages.push({ role: "assistant", content: [{ ...block, input }] });
  const error = invalid(block.name, input);
  const refusal = error ? `<tool_use_error>${error}</tool_use_error>` : refusalOf(block.id, block.name, input);
  const content = refusal ?? String(run[block.name](input) ?? "done");
  const result = { type: "tool_result", tool_use_id: block.id, is_error: refusal !== undefined, content };
  messages.push({ role: "user", content: [result] });
}
