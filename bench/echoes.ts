import { fromBinary } from "@bufbuild/protobuf";
import { SessionService } from "../gen/opencode/tool/v1/session_service_pb.ts";
import type { ToolPart } from "../gen/opencode/tool/v1/tool_pb.ts";
import {
  CallToolRequestSchema,
  StreamToolsResponseSchema,
  ToolService,
} from "../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Http2Client } from "./http2-client.ts";
import type { Echo } from "./load.ts";
import { createMcpClient, createModernMcpClient } from "./mcp-client.ts";

/** Calls ToolService by one protocol: in one session, each call under a new id. */
export type Protocol = (client: Http2Client, sessionId: string) => Echo;

/** CallTool by the Connect protocol, of a tool that returns its text. */
export const callNamed =
  (tool: string): Protocol =>
  (client, sessionId) =>
    numbered(async (call) => {
      const { part } = await client.connect(ToolService.method.callTool, { sessionId, ...call, tool });
      return outputOf(part);
    });

/** CallTool by the Connect protocol. */
export const callByConnect: Protocol = callNamed("echo");

/** CallTool by the gRPC protocol, of a tool that returns its text. */
export const grpcNamed =
  (tool: string, bytes?: number): Protocol =>
  (client, sessionId) =>
    numbered(async (call) => {
      const [response] = await client.grpc(ToolService.method.callTool, { sessionId, ...call, tool });
      return outputOf(response?.part);
    }, bytes);

/** CallTool by the gRPC protocol. */
export const callByGrpc: Protocol = grpcNamed("echo");

/** ExecuteTool by the gRPC protocol, its stream read to the end. */
export const executeByGrpc: Protocol = (client, sessionId) =>
  numbered(async (call) => {
    const responses = await client.grpc(ToolService.method.executeTool, { sessionId, ...call });
    const last = responses.at(-1)?.event?.event;
    return last?.case === "part" ? outputOf(last.value) : undefined;
  });

/** StreamTools by the gRPC protocol: each call on one stream, its input in one piece, up to its end. */
export const callOnStream: Protocol = (client, sessionId) => {
  const waiting = new Map<string, PromiseWithResolvers<string>>();
  const stream = client.duplex(ToolService.method.streamTools, (bytes) => {
    const { streamId, message } = fromBinary(StreamToolsResponseSchema, bytes);
    const call = waiting.get(streamId);
    if (message.case === "error") call?.reject(new Error(message.value.message));
    if (message.case !== "event" || message.value.event?.event.case !== "part") return;
    const { state } = message.value.event.event.value;
    if (state.case === "completed") call?.resolve(state.value.output);
    if (state.case === "error") call?.reject(new Error(state.value.error));
  });
  return numbered(async ({ input, ...call }) => {
    const streamId = call.callId;
    const { promise, ...ends } = Promise.withResolvers<string>();
    waiting.set(streamId, { promise, ...ends });
    stream.send(
      { streamId, message: { case: "open", value: { sessionId, ...call } } },
      { streamId, message: { case: "inputDelta", value: { text: JSON.stringify(input) } } },
      { streamId, message: { case: "execute", value: {} } },
    );
    const output = await promise;
    waiting.delete(streamId);
    return output;
  });
};

/** The same request by the gRPC protocol, to a server that sends back its bytes. */
export const bytesByGrpc: Protocol = (client, sessionId) => {
  const method = { ...ToolService.method.callTool, output: CallToolRequestSchema };
  return numbered(async (call) => {
    const [same] = await client.grpc(method, { sessionId, ...call });
    return same?.input?.text;
  });
};

/** `tools/call` of an MCP server. */
export async function callByMcp(url: string): Promise<Echo> {
  const call = await createMcpClient(url);
  return numbered(({ tool, input }, number) => call(number, tool, input));
}

/** `tools/call` in version 2026-07-28 of the protocol. */
export function callByModernMcp(url: string, headers: Readonly<Record<string, string>> = {}): Echo {
  const call = createModernMcpClient(url, headers);
  return numbered(({ tool, input }, number) => call(number, tool, input));
}

/** Opens a session, for calls to the real service. */
export async function openSession(client: Http2Client): Promise<string> {
  const { session } = await client.connect(SessionService.method.createSession, {});
  if (session === undefined) throw new Error("CreateSession answered without a session");
  return session.id;
}

/** Calls with a text that no other call has, and throws unless it comes back. */
export function numbered(
  call: (request: ReturnType<typeof requestOf>, number: number) => Promise<unknown>,
  bytes = 1_024,
): Echo {
  let calls = 0;
  return async () => {
    calls += 1;
    const request = requestOf(calls, bytes);
    const answer = await call(request, calls);
    if (answer !== request.input.text) throw new Error(`call ${calls} came back with another text: ${answer}`);
  };
}

/** A text that no other call has. */
function requestOf(number: number, bytes: number) {
  const text = String(number)
    .padStart(8, "0")
    .repeat(bytes / 8);
  return { messageId: "msg_bench", callId: `call_${number}`, tool: "echo", input: { text } };
}

function outputOf(part: ToolPart | undefined): string {
  const state = part?.state;
  if (state?.case === "completed") return state.value.output;
  throw new Error(
    `a call was not completed but is ${state?.case}${state?.case === "error" ? `: ${state.value.error}` : ""}`,
  );
}
