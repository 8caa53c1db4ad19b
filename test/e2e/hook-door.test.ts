import { afterAll, beforeAll, expect, test } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { recordedClaudeHook } from "../hooks/recorded.ts";
import { clientOf } from "./clients.ts";
import { hostTokens } from "./host.ts";
import { createService } from "./service.ts";

const rules = '[permission.bash]\n"echo *" = "allow"\n"rm *" = "deny"\n';
const service = createService({ settings: `${rules}${hostTokens}` });
beforeAll(service.start);
afterAll(service.close);
const permissions = () => clientOf(PermissionService, service.url, "approver-token-for-tests");

async function post(body: string, { token = "host-token-for-tests", query = "", more = {} } = {}) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json", ...more };
  const response = await fetch(`${service.url}/hooks/claude${query}`, { method: "POST", headers, body });
  return { status: response.status, answer: await response.json() };
}

const hook = (event: string, changes: object) =>
  JSON.stringify({ ...JSON.parse(recordedClaudeHook(service.workspace, event, "Bash").text), ...changes });

const decided = (permissionDecision: string, permissionDecisionReason: unknown = expect.any(String)) => ({
  status: 200,
  answer: { hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision, permissionDecisionReason } },
});

/** Approves the next open request. */
async function approveNext(): Promise<void> {
  for await (const { event } of permissions().watchPermissions({})) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId, sessionId } = event.event.value;
    await permissions().respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE });
    return;
  }
}

test("opencode's API is closed unless the configuration opens it", async () => {
  const headers = { authorization: "Bearer approver-token-for-tests" };
  for (const path of ["/session", "/event", "/permission"])
    expect((await fetch(`${service.url}${path}`, { headers })).status).toBe(404);
});

test("a use is decided by rules and by approvers, and its result is reported", async () => {
  const denied = hook("PreToolUse", { tool_input: { command: "rm -rf build" }, tool_use_id: "toolu_2" });
  expect(await post(denied)).toEqual(decided("deny", expect.stringContaining("rm")));
  const use = { tool_input: { command: "make" }, tool_use_id: "toolu_1" };
  const waiting = post(hook("PreToolUse", use));
  await approveNext();
  expect(await waiting).toEqual(decided("allow"));
  expect(await post(hook("PermissionRequest", use))).toMatchObject({
    answer: { hookSpecificOutput: { decision: { behavior: "allow" } } },
  });
  expect(await post(hook("PostToolUse", use))).toEqual({ status: 200, answer: {} });

  const admin = "admin-token-for-tests";
  const { sessions } = await clientOf(SessionService, service.url, admin).listSessions({});
  const [{ id: sessionId } = { id: "" }] = sessions;
  const { parts } = await clientOf(ToolService, service.url, admin).listToolParts({ sessionId });
  expect(parts.find(({ callId }) => callId === "toolu_1")).toMatchObject({
    reportedBy: "host",
    state: { case: "completed", value: { output: "hi" } },
  });
});

test("a use that nobody answers before the agent's limit is denied", async () => {
  const late = hook("PreToolUse", { tool_input: { command: "make late" }, tool_use_id: "toolu_4" });
  expect(await post(late, { query: "?timeout=6" })).toEqual(
    decided("deny", expect.stringContaining("not answered yet")),
  );
});

test("every failure is a denial with status 200, since Claude Code runs the tool after another status", async () => {
  const use = hook("PreToolUse", { tool_input: { command: "echo hi" }, tool_use_id: "toolu_5" });
  const nothing = decided("deny", expect.stringContaining("Nothing was run"));
  expect(await post(use, { token: "no-token-of-this-service" })).toEqual(nothing);
  expect(await post(use, { token: "approver-token-for-tests" })).toEqual(nothing);
  expect(await post("not JSON")).toEqual(nothing);
  expect(await post("{}")).toEqual(nothing);
  const elsewhere = hook("PreToolUse", { cwd: "/nonexistent", tool_use_id: "toolu_6" });
  expect(await post(elsewhere)).toEqual(nothing);
});

test("existing tools of the MCP server that the hook names are not asked", async () => {
  const own = (tool_name: string) =>
    hook("PreToolUse", { tool_name, tool_input: {}, tool_use_id: `toolu_${tool_name}` });
  expect(await post(own("mcp__gate__read"), { query: "?mcp=gate" })).toEqual(decided("allow"));
  expect(await post(own("mcp__gate__invented"), { query: "?mcp=gate&timeout=6" })).toEqual(decided("deny"));
});

test("a page of another origin and a body that a form can send are denied", async () => {
  const use = hook("PreToolUse", { tool_input: { command: "rm -rf build" }, tool_use_id: "toolu_7" });
  expect(await post(use)).toEqual(decided("deny", expect.stringContaining("rm")));
  const page = await post(use, { more: { origin: "https://page.example" } });
  expect(page).toEqual(decided("deny", expect.stringContaining("may not call")));
  const form = await post(use, { more: { "content-type": "text/plain" } });
  expect(form).toEqual(decided("deny", expect.stringContaining("application/json")));
});

test("a use that is held while the service stops is denied", async () => {
  const waiting = post(hook("PreToolUse", { tool_input: { command: "make held" }, tool_use_id: "toolu_8" }));
  await expect
    .poll(async () => (await permissions().listPermissions({})).permissions.map(({ patterns }) => patterns))
    .toContainEqual(["make held"]);
  expect(await service.stop()).toBe(0);
  expect(await waiting).toEqual(decided("deny", expect.stringContaining("Nothing was run")));
});
