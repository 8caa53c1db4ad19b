import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { startService } from "./service.ts";

test("unattended, what would ask is denied at once, and what is allowed runs", async () => {
  const service = await startService({ flags: ["--unattended", "deny"] });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, tool: "bash", input: { command: "echo hi" } };
  const denied = await agent.tools.callTool({ ...call, callId: "c1" });
  expect(denied.part?.state.value).toMatchObject({
    reason: ToolErrorReason.DENIED,
    error: expect.stringContaining("it needs an approver, and the service runs without one"),
  });
  const again = await read(agent.tools.executeTool({ ...call, callId: "c1" })).until("permissionSettled");
  expect(again).toMatchObject({ outcome: PermissionOutcome.DENIED, by: "" });
  const asked = await agent.tools.callTool({ sessionId, tool: "question", input: { question: "Go on?" } });
  expect(asked.part?.state.value).toMatchObject({
    reason: ToolErrorReason.DENIED,
    error: expect.stringContaining("The question was not asked: it needs a person"),
  });
  expect((await agent.permissions.listPermissions({})).permissions).toEqual([]);
  const allowed = await agent.tools.callTool({ ...call, callId: "c2", agent: "free" });
  expect(allowed.part?.state.value).toMatchObject({ output: "hi\n" });
});

test("without tokens any client calls and answers, its own calls included", async () => {
  const service = await startService({ flags: ["--insecure-no-auth"] });
  const transport = createGrpcTransport({ baseUrl: service.url });
  const [tools, permissions] = [createClient(ToolService, transport), createClient(PermissionService, transport)];
  expect((await tools.getServerInfo({})).principal).toBe("anonymous");
  const stream = read(tools.executeTool({ callId: "c1", tool: "bash", input: { command: "echo mine" } }));
  const { id: permissionId, sessionId } = await stream.until("permissionAsked");
  await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  expect((await stream.end()).state.value).toMatchObject({ output: "mine\n" });
});
