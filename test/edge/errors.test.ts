import { readFile } from "node:fs/promises";
import { create } from "@bufbuild/protobuf";
import { ViolationsSchema } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { ErrorInfoSchema, RetryInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { createFailures } from "../../src/edge/api/failures.ts";
import { connectFailure } from "../../src/edge/rpc/errors.ts";
import { createGrpcJsTransport } from "../e2e/grpc-js.ts";
import { startServer } from "./server.ts";

test("each reason has the code that the contract's comment names", async () => {
  const proto = await readFile("proto/opencode/tool/v1/error_reason.proto", "utf8");
  const named = [...proto.matchAll(/ERROR_REASON_(\w+) \((\w+)\):/g)].map(([, reason, code]) => [reason, code]);
  const reported = Object.entries(ErrorReason)
    .filter(([name]) => name !== "UNSPECIFIED")
    .map(([name, reason]) => [name, failureOf(new RequestError(reason, "no"), "rpc").status]);
  expect(reported).toEqual(named);
});

test("a refusal carries its reason, domain and metadata", async () => {
  const error = await failing(() => {
    throw new RequestError(ErrorReason.NO_SUCH_CALL, "call c1 is not known", { session_id: "ses_1", call_id: "c1" });
  });
  expect([error.code, error.rawMessage]).toEqual([Code.NotFound, "call c1 is not known"]);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
    { reason: "NO_SUCH_CALL", domain: "opencode.tool.v1", metadata: { session_id: "ses_1", call_id: "c1" } },
  ]);
});

test("an answer that lost a race gets the settlement", async () => {
  const settled = create(PermissionSettledSchema, { permissionId: "per_1", by: "anna" });
  const error = await failing(() => {
    throw new RequestError(ErrorReason.ALREADY_ANSWERED, "anna was first", { permission_id: "per_1" }, { settled });
  });
  expect(error.findDetails(PermissionSettledSchema)).toEqual([settled]);
});

test("an exceeded quota names the time to retry", async () => {
  const error = await failing(() => {
    throw new RequestError(ErrorReason.QUOTA_EXCEEDED, "64 calls are open", { limit: "running_calls" });
  });
  expect(error.findDetails(RetryInfoSchema)).toMatchObject([{ retryDelay: { seconds: 1n } }]);
});

test("a message that breaks a rule of the contract is INVALID_MESSAGE with the field and its violations", async () => {
  const server = await startServer();
  const call = clientOf(server.url).callTool({ tool: "bash", callId: "with space" });
  const error = ConnectError.from(await call.catch((cause) => cause));
  expect(error.code).toBe(Code.InvalidArgument);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
    { reason: "INVALID_MESSAGE", metadata: { field: "call_id" } },
  ]);
  expect(error.findDetails(ViolationsSchema)).toHaveLength(1);
});

test.each<[string, (tools: Client<typeof ToolService>) => Promise<unknown>]>([
  [
    "a long key",
    (tools) => tools.callTool({ sessionId: "ses_1", tool: "bash", input: { ["k".repeat(70_000)]: Infinity } }),
  ],
  ["many broken rules", (tools) => tools.planTool({ sessionId: "ses_1", tool: "bash", rules: Array(1_000).fill({}) })],
])("a refusal of %s fits into the trailers of gRPC, and its connection goes on", async (_, send) => {
  const [called, answer] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const server = await startServer({
    async callTool() {
      called.resolve();
      await answer.promise;
      return {};
    },
  });
  const tools = createClient(ToolService, createGrpcJsTransport(server.url, "caller-token"));
  const waiting = tools.callTool({ sessionId: "ses_1", tool: "bash" });
  await called.promise;
  const error = ConnectError.from(await send(tools).catch((cause) => cause));
  expect(error.code).toBe(Code.InvalidArgument);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "INVALID_MESSAGE" }]);
  answer.resolve();
  await waiting;
});

test("a request of a stream that breaks a rule is INVALID_MESSAGE with the field", async () => {
  const server = await startServer();
  const error = await streamFailure(clientOf(server.url).executeTool({ tool: "bash", callId: "with space" }));
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
    { reason: "INVALID_MESSAGE", metadata: { field: "call_id" } },
  ]);
});

test("an unexpected error is logged once with its cause, and the client gets only its request id", async () => {
  const server = await startServer({
    getServerInfo() {
      throw new Error("the key is 12345", { cause: new Error("disk on fire") });
    },
  });
  const error = ConnectError.from(
    await clientOf(server.url)
      .getServerInfo({})
      .catch((cause) => cause),
  );
  expect(error.code).toBe(Code.Internal);
  const id = /^internal error, request id (\S+)$/.exec(error.rawMessage)?.[1];
  const lines = (await server.logged()).trim().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    {
      level: "error",
      message: "rpc failed",
      rpc: "opencode.tool.v1.ToolService/GetServerInfo",
      requestId: id,
      error: { message: "the key is 12345", cause: { message: "disk on fire" } },
    },
  ]);
});

test("an error in the middle of a stream keeps its code, its reason and the messages before it", async () => {
  const server = await startServer({
    async *watchSession() {
      yield { lastSeq: 1n };
      throw new RequestError(ErrorReason.HISTORY_TRIMMED, "gone", { first_seq: "7", last_seq: "9" });
    },
  });
  const seen: bigint[] = [];
  const stream = clientOf(server.url).watchSession({ sessionId: "ses_1" });
  const error = await streamFailure(stream, ({ lastSeq }) => seen.push(lastSeq));
  expect(seen).toEqual([1n]);
  expect(error.code).toBe(Code.OutOfRange);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "HISTORY_TRIMMED" }]);
});

test("an unexpected error in a stream hides its message too", async () => {
  const server = await startServer({
    // biome-ignore lint/correctness/useYield: it fails before its first message.
    async *watchSession() {
      throw new Error("the key is 12345");
    },
  });
  const error = await streamFailure(clientOf(server.url).watchSession({ sessionId: "ses_1" }));
  expect([error.code, error.rawMessage]).toEqual([Code.Internal, expect.stringMatching(/^internal error, request id/)]);
});

test("a deadline is deadline_exceeded, whichever abort error the waiting code throws", () => {
  const abort = new DOMException("This operation was aborted", "AbortError");
  const late = AbortSignal.abort(new ConnectError("the operation timed out", Code.DeadlineExceeded));
  expect(failureOf(abort, "rpc", late).status).toBe("deadline_exceeded");
  expect(failureOf(abort, "rpc", AbortSignal.abort()).status).toBe("canceled");
  expect(failureOf(new DOMException("late", "TimeoutError"), "rpc").status).toBe("deadline_exceeded");
});

test("a request over the limit is resource_exhausted", async () => {
  const server = await startServer();
  const error = ConnectError.from(
    await clientOf(server.url)
      .callTool({ tool: "bash", input: { command: "x".repeat(4_194_304) } })
      .catch((cause) => cause),
  );
  expect(error.code).toBe(Code.ResourceExhausted);
  expect(error.rawMessage).toContain("the limit of 4194304 bytes");
});

test("a request over the limit without announced length is resource_exhausted", async () => {
  const server = await startServer();
  const response = await fetch(`${server.url}/opencode.tool.v1.ToolService/CallTool`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer caller-token" },
    body: new Blob(["x".repeat(4_194_305)]).stream(),
    duplex: "half",
  });
  expect([response.status, await response.json()]).toMatchObject([429, { code: "resource_exhausted" }]);
});

const silent = { debug() {}, info() {}, warn() {}, error() {} };
const { failureOf } = createFailures({ log: silent, newId: () => "id", fromLibrary: connectFailure });

function clientOf(baseUrl: string) {
  return createClient(
    ToolService,
    createGrpcTransport({
      baseUrl,
      interceptors: [
        (next) => (request) => {
          request.header.set("authorization", "Bearer admin-token");
          return next(request);
        },
      ],
    }),
  );
}

async function failing(getServerInfo: () => never): Promise<ConnectError> {
  const server = await startServer({ getServerInfo });
  return ConnectError.from(
    await clientOf(server.url)
      .getServerInfo({})
      .catch((cause) => cause),
  );
}

async function streamFailure<T>(stream: AsyncIterable<T>, see: (message: T) => void = () => {}): Promise<ConnectError> {
  try {
    for await (const message of stream) see(message);
  } catch (error) {
    return ConnectError.from(error);
  }
  throw new Error("the stream ended without an error");
}
