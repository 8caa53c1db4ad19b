import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { connect, kinds, refusal } from "./clients.ts";
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

test("the first start makes two tokens that only their owner can read, and later starts keep them", async () => {
  const service = await startService({ ownTokens: true });
  const token = async (role: string) => (await readFile(join(service.data, "tokens", role), "utf8")).trim();
  const infoOf = async (bearer: string) => {
    const open = kinds.gRPC;
    if (open === undefined) throw new Error("there is no such client");
    return await createClient(ToolService, open(service.url, bearer)).getServerInfo({});
  };
  const before = { caller: await token("caller"), approver: await token("approver") };
  for (const [role, bearer] of Object.entries(before)) {
    expect((await stat(join(service.data, "tokens", role))).mode & 0o777).toBe(0o600);
    expect((await infoOf(bearer)).roles).toEqual([role]);
  }
  for (const bearer of ["", "caller", before.caller.slice(1)]) {
    expect(await refusal(infoOf(bearer))).toMatchObject({ code: Code.Unauthenticated, reason: "UNAUTHENTICATED" });
  }
  expect(await service.stop()).toBe(0);
  await service.start();
  expect({ caller: await token("caller"), approver: await token("approver") }).toEqual(before);
  expect((await infoOf(before.caller)).principal).toBe("caller");
});
