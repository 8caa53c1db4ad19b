import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdir } from "node:fs/promises";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { createPlace } from "./agents.ts";
import { agentPrograms } from "./programs.ts";

const approver = "approver-token-for-tests";

/** Connects a real agent to a service whose policy asks about everything; returns what `connect --json` printed. */
async function connectReal(kind: "claude" | "opencode") {
  const service = await startService({ settings: '[permission]\n"*" = "ask"\n' });
  const { home } = await createPlace(service.workspace);
  const env = { PATH: process.env.PATH, HOME: home, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: approver };
  const main = `${import.meta.dirname}/../../src/main.ts`;
  const args = [main, "connect", kind, "--yes", "--json", "--agent-program", agentPrograms[kind]];
  const child = spawn(process.execPath, args, { cwd: service.workspace, env });
  onTestFinished(() => void child.kill("SIGKILL"));
  const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  expect(stderr).toBe("");
  const { canary } = JSON.parse(stdout);
  const rows: { tool: string; result: string; reason?: string }[] = canary.rows;
  const toolsThat = (result: string) => rows.filter((row) => row.result === result).map(({ tool }) => tool);
  const reasons = Object.fromEntries(rows.flatMap(({ tool, reason }) => (reason ? [[tool, reason]] : [])));
  return { service, canary, toolsThat, reasons };
}

/** Returns the ends of all calls that the canary made. */
async function endsOf(url: string) {
  const { sessions } = await clientOf(SessionService, url, approver).listSessions({});
  const tools = clientOf(ToolService, url, approver);
  const pages = await Promise.all(sessions.map(({ id }) => tools.listToolParts({ sessionId: id })));
  return pages.flatMap(({ parts }) => parts);
}

test("each native tool of Claude Code that asks shows one request, and rejected leaves no marker", async () => {
  const { service, canary, toolsThat, reasons } = await connectReal("claude");
  expect(canary.problem).toBe("");
  const asking = toolsThat("asks");
  expect(asking).toEqual(expect.arrayContaining(["Bash", "Edit", "Read", "WebFetch", "WebSearch", "Write"]));
  expect(asking).toEqual(expect.arrayContaining(["CronCreate", "Monitor", "Skill", "Workflow"]));
  // These uses need an earlier one that ran, and the canary rejects each: Claude Code refuses them before it runs a hook.
  expect(reasons).toEqual({
    CronDelete: expect.stringContaining("No scheduled job"),
    ExitWorktree: expect.stringContaining("no active EnterWorktree session"),
    NotebookEdit: expect.stringContaining("File has not been read yet"),
    TaskStop: expect.stringContaining("task_id"),
  });
  expect(toolsThat("runs unasked")).toEqual([]);
  const parts = await endsOf(service.url);
  expect(parts).toHaveLength(asking.length);
  // Only a person's answer to a request ends a call as rejected.
  for (const { state, tool } of parts)
    expect(state.case === "error" && state.value.reason, tool).toBe(ToolErrorReason.REJECTED);
  expect(await readdir(service.workspace)).toEqual([]);
});

test("each native tool of opencode that asks shows one request, and rejected leaves no marker", async () => {
  const { service, canary, toolsThat } = await connectReal("opencode");
  expect(canary.problem).toBe("");
  const asking = toolsThat("asks");
  expect(asking).toEqual(expect.arrayContaining(["bash", "edit", "glob", "grep", "read", "task", "webfetch", "write"]));
  expect(toolsThat("runs unasked")).toEqual([]);
  const parts = await endsOf(service.url);
  expect(parts).toHaveLength(asking.length);
  for (const { state, tool } of parts)
    expect(state.case === "error" && state.value.reason, tool).toBe(ToolErrorReason.REJECTED);
  expect(await readdir(service.workspace)).toEqual([]);
});
