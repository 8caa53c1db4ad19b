#!/usr/bin/env node
// Follows the recorded exchange of `claude -p` with one use of Bash: a deferred use ends the run, `--resume` runs the hook again.
import { execFileSync, spawnSync } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import { join } from "node:path";

const { FAKE_WORKSPACE: cwd, HOME } = process.env;
const args = process.argv.slice(2);
appendFileSync(join(HOME, "runs"), `${JSON.stringify(args)}\n`);
const after = (name) => args[args.indexOf(name) + 1];
const session_id = args.includes("--resume") ? after("--resume") : after("--session-id");
const { hooks } = JSON.parse(readFileSync(join(HOME, ".claude/settings.json"), "utf8"));
const use = { id: `toolu_${session_id.slice(0, 8)}`, name: "Bash", input: { command: "touch marker" } };
const hook = { hook_event_name: "PreToolUse", session_id, cwd, tool_name: use.name, tool_input: use.input };
const input = JSON.stringify({ ...hook, tool_use_id: use.id });
const { stdout } = spawnSync("/bin/sh", ["-c", hooks.PreToolUse[0].hooks[0].command], { input });
const { permissionDecision, permissionDecisionReason } = JSON.parse(stdout.toString()).hookSpecificOutput;
const end = (fields) => console.log(JSON.stringify({ type: "result", session_id, ...fields }));
if (permissionDecision === "defer") {
  end({ terminal_reason: "tool_deferred", stop_reason: "tool_deferred", deferred_tool_use: use, result: "" });
} else if (permissionDecision === "allow") {
  execFileSync("sh", ["-c", use.input.command], { cwd });
  end({ terminal_reason: "completed", result: "ran it" });
} else {
  end({ terminal_reason: "completed", result: permissionDecisionReason });
  process.exitCode = 3;
}
