import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const claude = { kind: "claude", place: "/home/ann/shop", subagent: "" };
const reviewer = { ...claude, subagent: "reviewer" };

test("the agent of a session is on its requests, in log, audit, metrics and terminal; a child keeps it or names its own", async () => {
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const { session: root } = await agent.sessions.createSession({ requester: claude });
  const { session: plain } = await agent.sessions.createSession({ parentSessionId: root?.id ?? "" });
  expect(plain?.requester).toMatchObject(claude);
  const child = { parentSessionId: root?.id ?? "", requester: reviewer };
  const sessionId = (await agent.sessions.createSession(child)).session?.id ?? "";

  const call = { sessionId, callId: "c1", tool: "bash", input: { command: "true" } };
  const stream = read(agent.tools.executeTool(call));
  const asked = await stream.until("permissionAsked");
  expect(asked.requester).toMatchObject(reviewer);
  const asks = await toolgate(["asks", "--server", service.url, "--token", "approver-token-for-tests"]);
  expect(asks.stdout).toContain("asked by Claude Code in ~/shop, reviewer");

  const answer = { sessionId, permissionId: asked.id, reply: PermissionReply.ONCE };
  await person.permissions.respondToPermission(answer);
  await stream.end();
  const { part } = await agent.tools.getToolPart(call);
  expect(part?.requester).toMatchObject(reviewer);
  const { entries } = await person.permissions.listDecisions({ sessionId });
  expect(entries.map(({ record }) => record?.requester)).toEqual(entries.map(() => expect.objectContaining(reviewer)));
  expect(entries.length).toBeGreaterThan(1);
  const metrics = await fetch(`${service.url}/metrics`, {
    headers: { authorization: "Bearer watcher-token-for-tests" },
  });
  expect(await metrics.text()).toContain('toolgate_agent_calls_total{kind="claude",outcome="completed"} 1\n');
  expect(await readFile(join(service.data, "log", "toolgate.log"), "utf8")).toContain(
    '"requester":{"kind":"claude","place":"/home/ann/shop","subagent":"reviewer"}',
  );
});

test("a kind that is no name is refused", async () => {
  const agent = connect(service, "caller");
  const create = agent.sessions.createSession({ requester: { kind: 'x"} 1\ny{z="' } });
  expect(await refusal(create)).toMatchObject({ code: Code.InvalidArgument });
});
