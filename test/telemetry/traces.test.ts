import { expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { startService } from "../e2e/service.ts";
import { startCollector } from "./collector.ts";

const traceId = "0af7651916cd43dd8448eb211c80319c";
const callerSpan = "b7ad6b7169203331";
const headers = { traceparent: `00-${traceId}-${callerSpan}-01`, tracestate: "vendor=1" };
const input = { command: 'echo "$TRACEPARENT $TRACESTATE"' };

test("a call and its steps are spans of the caller's trace, and a command belongs to the step that runs it", async () => {
  const collector = await startCollector();
  const service = await startService({ env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url } });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input }, { headers }));
  const { id } = await call.until("permissionAsked");
  const person = connect(service, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
  const { state } = await call.end();
  await agent.tools.callTool({ sessionId, callId: "c2", tool: "read", input: { filePath: "missing" } });
  await service.stop();

  const named = (name: string) => collector.spans.filter((span) => span.name === name && span.traceId === traceId);
  const [waited, root] = named("execute_tool bash");
  expect(waited).toMatchObject({ isError: false, attributes: { "toolgate.call.state": "pending" } });
  expect(root).toMatchObject({
    links: [waited?.spanId],
    parentSpanId: callerSpan,
    isError: false,
    attributes: {
      "gen_ai.tool.name": "bash",
      "gen_ai.tool.call.id": "c1",
      "gen_ai.conversation.id": sessionId,
      "gen_ai.agent.name": "build",
      "toolgate.call.state": "completed",
    },
  });
  const stepsOf = (span: typeof root) =>
    collector.spans.flatMap(({ parentSpanId, name }) => (parentSpanId === span?.spanId ? name : [])).toSorted();
  expect(stepsOf(waited)).toEqual(["plan"]);
  // An answer that takes longer than 50 ms to judge is only settled, and the call is planned once more.
  expect(stepsOf(root).filter((name) => name !== "plan")).toEqual(["execute", "wait"]);
  const output = state.case === "completed" ? state.value.output : "";
  expect(output).toBe(`00-${traceId}-${named("execute")[0]?.spanId}-01 vendor=1\n`);

  const failed = collector.spans.find(({ name }) => name === "execute_tool read");
  expect(failed).toMatchObject({ isError: true, parentSpanId: "", attributes: { "error.type": "failed" } });
  expect(collector.resources[0]).toMatchObject({ "service.name": "toolgate" });
});

test("calls that a tool makes belong to the step that makes them, also if the caller has no trace", async () => {
  const collector = await startCollector();
  const service = await startService({ env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url } });
  const tools = [{ tool: "echo", args: { text: "x" } }];
  const call = { agent: "free", tool: "batch", input: { tools } };
  expect((await connect(service, "caller").tools.callTool(call)).part?.state.case).toBe("completed");
  await service.stop();
  const spanOf = (name: string, parentSpanId?: string) =>
    collector.spans.find((span) => span.name === name && (parentSpanId ?? span.parentSpanId) === span.parentSpanId);
  const batch = spanOf("execute_tool batch", "");
  const execute = spanOf("execute", batch?.spanId);
  expect(spanOf("execute_tool echo")).toMatchObject({ parentSpanId: execute?.spanId, traceId: batch?.traceId });
});

test("without an exporter a command gets the caller's trace unchanged, and none if it is missing or malformed", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const outputOf = async (given: Record<string, string>) => {
    const { part } = await agent.tools.callTool({ sessionId, agent: "free", tool: "bash", input }, { headers: given });
    return part?.state.case === "completed" ? part.state.value.output.trim() : part?.state.case;
  };
  expect(await outputOf(headers)).toBe(`${headers.traceparent} vendor=1`);
  expect(await outputOf({})).toBe("");
  expect(await outputOf({ traceparent: "00-1-2-01", tracestate: "vendor=1" })).toBe("");
  expect(await outputOf({ traceparent: `00-${"0".repeat(32)}-${callerSpan}-01` })).toBe("");
});
