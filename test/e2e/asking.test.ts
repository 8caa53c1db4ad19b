import { expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { UnattendedPolicy } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { startService, useService } from "./service.ts";

const settings = `
[agent.quiet]
description = "Never waits for anybody"
[agent.quiet.permission]
"*" = "deny"
todoread = "allow"
[agent.part.permission]
"*" = "allow"
bash = "deny"
external_directory = "deny"
"mcp_*" = "ask"
`;
const service = useService({ settings });

test("GetServerInfo lists by agent which permissions can ask", async () => {
  const info = await connect(service, "caller").tools.getServerInfo({});
  expect(info.unattended).toBe(UnattendedPolicy.WAIT);
  expect(info.agentDetails.map(({ agent }) => agent)).toEqual(info.agents);
  const about = (name: string) => info.agentDetails.find(({ agent }) => agent === name);
  expect(about("build")?.canAsk).toEqual(expect.arrayContaining(["*", "bash", "edit", "read", "doom_loop"]));
  expect(about("plan")?.canAsk).not.toContain("edit");
  expect(about("explore")?.canAsk).toEqual(expect.arrayContaining(["bash", "read", "webfetch", "doom_loop"]));
  expect(about("explore")?.canAsk).not.toEqual(expect.arrayContaining(["*"]));
  expect(about("quiet")).toMatchObject({ description: "Never waits for anybody", canAsk: [] });
  expect(about("part")?.canAsk).toEqual([
    "edit",
    "glob",
    "grep",
    "list",
    "lsp",
    "mcp_*",
    "question",
    "read",
    "webfetch",
  ]);
});

test("an ask of a grandchild is on every stream of its root, with its ancestry, and so is its end", async () => {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const root = await agent.newSession();
  const child = await agent.newSession({ parentSessionId: root });
  const sessionId = await agent.newSession({ parentSessionId: child });
  const streams = [root, child].flatMap((watched) => [
    read(person.tools.watchSession({ sessionId: watched })),
    read(person.permissions.watchPermissions({ sessionId: watched })),
  ]);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: "true" }, waitMs: 0 };
  await agent.tools.callTool(call);
  const asks = await Promise.all(streams.map((stream) => stream.until("permissionAsked")));
  const ancestry = [root, child, sessionId];
  for (const ask of asks) expect(ask).toMatchObject({ sessionId, ancestry, permission: "bash" });
  const listed = await person.permissions.listPermissions({ sessionId: root });
  expect(listed.permissions.map(({ id, ancestry }) => [id, ancestry])).toEqual([[asks[0]?.id, ancestry]]);
  await agent.tools.cancelTool({ sessionId, callId: "c1" });
  for (const stream of streams)
    expect(await stream.until("permissionSettled")).toMatchObject({ sessionId, outcome: PermissionOutcome.WITHDRAWN });
});

test("unattended, an ask of a child is denied at once, and the root's stream has the settlement", async () => {
  const unattended = await startService({ flags: ["--unattended", "deny"] });
  const agent = connect(unattended, "caller");
  expect((await agent.tools.getServerInfo({})).unattended).toBe(UnattendedPolicy.DENY);
  const root = await agent.newSession();
  const sessionId = await agent.newSession({ parentSessionId: root });
  const { part } = await agent.tools.callTool({ sessionId, callId: "c1", tool: "bash", input: { command: "true" } });
  expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.DENIED });
  const log = read(agent.tools.watchSession({ sessionId: root }));
  expect(await log.until("permissionAsked")).toMatchObject({ sessionId, ancestry: [root, sessionId] });
  expect(await log.until("permissionSettled")).toMatchObject({ sessionId, outcome: PermissionOutcome.DENIED, by: "" });
});
