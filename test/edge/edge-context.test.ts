import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { EdgeContext } from "../../src/edge/api/rpc.ts";
import { startServer } from "./server.ts";

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const asApprover: Interceptor = (next) => (request) => {
  request.header.set("authorization", "Bearer approver-token");
  request.header.set("traceparent", traceparent);
  request.header.set("x-own", "one");
  request.header.append("x-own", "two");
  return next(request);
};
const interceptors = [asApprover];

/** Transports that the direct wire serves, and transports that only Connect's router serves. */
const transports: Record<string, (baseUrl: string) => Transport> = {
  gRPC: (baseUrl) => createGrpcTransport({ baseUrl, interceptors }),
  "Connect over HTTP/1.1": (baseUrl) => createConnectTransport({ baseUrl, httpVersion: "1.1", interceptors }),
  "gRPC-Web": (baseUrl) => createGrpcWebTransport({ baseUrl, httpVersion: "1.1", interceptors }),
};

test.each(Object.entries(transports))("a service gets the same context over %s", async (_name, open) => {
  const contexts: EdgeContext[] = [];
  const server = await startServer({
    getServerInfo(_request, context) {
      contexts.push(context);
      return {};
    },
  });
  const client = createClient(ToolService, open(server.url));
  const sent = Date.now();
  await client.getServerInfo({}, { timeoutMs: 60_000 });
  await client.getServerInfo({});
  const [limited, unlimited] = contexts;
  expect(limited).toMatchObject({
    principal: { id: "approver", agents: ["*"], workspaces: ["*"], answersOwn: false },
    roles: new Set(["approver"]),
    trace: { traceparent },
    limits: { requestBytes: 4_194_304, maxDeadlineMs: 86_400_000, defaultPageSize: 100 },
  });
  expect(limited?.headers.get("x-own")).toBe("one, two");
  expect(limited?.headers.get("x-missing")).toBeNull();
  expect(limited?.deadline).toBeGreaterThan(sent + 50_000);
  expect(limited?.deadline).toBeLessThan(Date.now() + 60_001);
  expect(unlimited?.deadline).toBeUndefined();
});
