import { once } from "node:events";
import type { ConnectionOptions } from "node:tls";
import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { type credentials, loadPackageDefinition, Metadata, type ServiceError } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { expect } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { startServer } from "./server.ts";

const interceptors: Interceptor[] = [
  (next) => (request) => {
    request.header.set("authorization", "Bearer caller-token");
    return next(request);
  },
];

/** Certificates of a client, for a server with TLS. */
export type Trust = Pick<ConnectionOptions, "ca" | "cert" | "key">;

/** Opens a connection as the caller of test/edge/server.ts, by protocol. */
export const transports = {
  "Connect over HTTP/1.1": (baseUrl: string, nodeOptions: Trust = {}) =>
    createConnectTransport({ baseUrl, nodeOptions, httpVersion: "1.1", interceptors }),
  "Connect over HTTP/2": (baseUrl: string, nodeOptions: Trust = {}) =>
    createConnectTransport({ baseUrl, nodeOptions, httpVersion: "2", interceptors }),
  gRPC: (baseUrl: string, nodeOptions: Trust = {}) => createGrpcTransport({ baseUrl, nodeOptions, interceptors }),
  "gRPC-Web over HTTP/1.1": (baseUrl: string, nodeOptions: Trust = {}) =>
    createGrpcWebTransport({ baseUrl, nodeOptions, httpVersion: "1.1", interceptors }),
  "gRPC-Web over HTTP/2": (baseUrl: string, nodeOptions: Trust = {}) =>
    createGrpcWebTransport({ baseUrl, nodeOptions, httpVersion: "2", interceptors }),
};

/** Starts a server whose rpcs a test defines. */
type Start = (tools: Parameters<typeof startServer>[0]) => ReturnType<typeof startServer>;
/** Opens a connection to its address. */
type Open = (url: string) => Transport;

/** A client gets a response and a stream to its end. */
export async function expectUnaryAndStreaming(start: Start, open: Open): Promise<void> {
  const server = await start({
    async *watchSession() {
      yield { lastSeq: 1n };
      yield { lastSeq: 2n };
    },
  });
  const client = createClient(ToolService, open(server.url));
  expect((await client.getServerInfo({})).principal).toBe("caller");
  const seen: bigint[] = [];
  for await (const { lastSeq } of client.watchSession({ sessionId: "ses_1" })) seen.push(lastSeq);
  expect(seen).toEqual([1n, 2n]);
}

/** A server that drains ends an open stream with DRAINING, and closes without cutting it. */
export async function expectDrained(start: Start, open: Open): Promise<void> {
  const server = await start({
    async *watchSession(_request, { signal }) {
      yield { lastSeq: 1n };
      await once(signal, "abort");
      throw signal.reason;
    },
  });
  const stream = createClient(ToolService, open(server.url)).watchSession({ sessionId: "ses_1" });
  const messages = stream[Symbol.asyncIterator]();
  expect((await messages.next()).value?.lastSeq).toBe(1n);
  const closed = server.close(60_000);
  const error = ConnectError.from(await messages.next().catch((cause) => cause));
  expect(error.code).toBe(Code.Unavailable);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "DRAINING" }]);
  await closed;
  expect(await server.logged()).toBe("");
}

/** A call that does not stop is cut at the end of the drain, which the log says. */
export async function expectCut(start: Start, open: Open): Promise<void> {
  const never = Promise.withResolvers<void>();
  const entered = Promise.withResolvers<void>();
  const server = await start({
    async getServerInfo() {
      entered.resolve();
      await never.promise;
      return {};
    },
  });
  const client = createClient(ToolService, open(server.url));
  const call = client.getServerInfo({}).catch((cause) => ConnectError.from(cause).code);
  await entered.promise;
  await server.close(1);
  expect(await call).toBe(Code.Canceled);
  expect(await server.logged()).toContain("connections were cut");
  never.resolve();
}

/** Calls GetServerInfo by grpc-js with a token of test/edge/server.ts, and without one. */
export async function callByGrpcJs(address: string, channel: ReturnType<typeof credentials.createSsl>) {
  const definition = loadSync("opencode/tool/v1/tool_service.proto", { includeDirs: ["proto"] });
  // grpc-js types definitions loaded at run time as a tree of unknowns.
  const loaded = loadPackageDefinition(definition) as unknown as GrpcJsPackage;
  const client = new loaded.opencode.tool.v1.ToolService(address, channel);
  const call = (metadata: Metadata) =>
    new Promise<{ error: ServiceError | null; principal: string | undefined }>((resolve) => {
      client.getServerInfo({}, metadata, (error, info) => resolve({ error, principal: info?.principal }));
    });
  const metadata = new Metadata();
  metadata.set("authorization", "Bearer caller-token");
  try {
    return { principal: (await call(metadata)).principal, refusal: (await call(new Metadata())).error };
  } finally {
    client.close();
  }
}

interface GrpcJsPackage {
  opencode: { tool: { v1: { ToolService: new (address: string, credentials: object) => GrpcJsClient } } };
}

interface GrpcJsClient {
  getServerInfo(
    request: object,
    metadata: Metadata,
    done: (error: ServiceError | null, value: { principal: string } | undefined) => void,
  ): void;
  close(): void;
}
