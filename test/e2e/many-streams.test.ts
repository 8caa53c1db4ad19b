import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { bearer, connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

test("a connection whose streams all wait can cancel and answer, and one more stream is refused", async () => {
  const [agent, approver] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const call = { sessionId, tool: "bash", input: { command: "true" } };
  const cancelled = read(agent.tools.executeTool({ ...call, callId: "cancelled" }));
  await cancelled.until("permissionAsked");
  const answered = read(agent.tools.executeTool({ ...call, callId: "answered" }));
  const { id: permissionId } = await answered.until("permissionAsked");
  const leaving = new AbortController();
  const { signal } = leaving;
  const open = async (stream: AsyncIterable<unknown>) => {
    const messages = stream[Symbol.asyncIterator]();
    await messages.next();
    return messages.next();
  };
  const watching = Array.from({ length: 998 }, () => open(agent.tools.watchSession({ sessionId }, { signal })));
  const asking = Array.from({ length: 120 }, () =>
    open(approver.permissions.watchPermissions({ sessionId }, { signal })),
  );
  await Promise.all(watching);
  await Promise.all(asking);

  const further = read(agent.tools.watchSession({ sessionId }));
  expect(await refusal(further.end())).toMatchObject({ reason: "OVERLOADED", metadata: { limit: "streams" } });
  await agent.tools.cancelTool({ sessionId, callId: "cancelled" });
  expect((await cancelled.end()).state.case).toBe("error");
  await approver.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  expect((await answered.end()).state.case).toBe("completed");
  leaving.abort();
});

test("clients that leave while the service cannot notice it are no errors in its log", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const session = new Http2SessionManager(service.url);
  const transport = createGrpcTransport({
    ...{ baseUrl: service.url, sessionManager: session, interceptors: [bearer("caller-token-for-tests")] },
  });
  const command = "for i in $(seq 100); do echo $i; sleep 0.02; done";
  const callIds = Array.from({ length: 4 }, (_, index) => `c${index}`);
  const call = { sessionId, agent: "free", tool: "bash", input: { command } };
  const { executeTool } = createClient(ToolService, transport);
  const streams = callIds.map((callId) => read(executeTool({ ...call, callId })));
  for (const stream of streams) await stream.until("output");
  const { pid = 0 } = service;
  process.kill(pid, "SIGSTOP");
  session.abort();
  await Promise.allSettled(streams.map((stream) => stream.end()));
  // The commands write on meanwhile.
  await delay(300);
  process.kill(pid, "SIGCONT");
  for (const callId of callIds) await agent.tools.callTool({ ...call, callId });
  const log = await readFile(join(service.data, "log", "toolgate.log"), "utf8");
  expect(log.split("\n").filter((line) => line.includes('"level":"error"'))).toEqual([]);
});
