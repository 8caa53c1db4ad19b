import { once } from "node:events";
import { type ClientHttp2Stream, connect as dial } from "node:http2";
import { connect as dialRaw } from "node:net";
import { gzipSync } from "node:zlib";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterEach, describe, expect, test } from "vitest";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../gen/grpc/health/v1/health_pb.ts";
import { connect } from "./clients.ts";
import { hostTokens } from "./host.ts";
import { useService } from "./service.ts";

const service = useService({ settings: hostTokens });

afterEach(async () => {
  const health = createClient(Health, createGrpcTransport({ baseUrl: service.url }));
  expect((await health.check({})).status).toBe(Status.SERVING);
  const { part } = await connect(service, "caller").tools.callTool({ tool: "echo", input: { text: "alive" } });
  expect(part?.state.value).toMatchObject({ output: "alive" });
});

describe("JSON by HTTP", () => {
  const cases: [string, string | Uint8Array<ArrayBuffer>, RegExp][] = [
    ["that does not parse", '{"tool":', /JSON/],
    ["that is no object", '"echo"', /CallToolRequest/],
    ["with a field of the wrong type", '{"tool": 7}', /tool/],
    ["with an enum value that is none", '{"tool": "echo", "onDisconnect": 99}', /on_?[dD]isconnect|OnDisconnect/],
    ["with a number out of range", '{"tool": "echo", "timeoutMs": -1}', /timeout_?[mM]s/],
    ["without what is needed", '{"input": {"text": "x"}}', /tool/],
    [
      "nested ten thousand deep",
      `{"tool": "echo", "input": {"text": ${"[".repeat(10_000)}${"]".repeat(10_000)}}}`,
      /./,
    ],
  ];

  test.each(cases)("%s is refused as invalid_argument, in words", async (_name, body, words) => {
    const answer = await post("ToolService/CallTool", body);
    expect([answer.status, answer.code]).toEqual([400, "invalid_argument"]);
    expect(answer.message).toMatch(words);
  });

  test.each([
    ["field", '"waitMS": 0', /waitMS/],
    ["enum value", '"onDisconnect": "EXPLODE"', /EXPLODE/],
  ])("a misspelt %s is refused and named, not taken for a default", async (_what, json, words) => {
    const answer = await post("ToolService/CallTool", `{"tool": "echo", "input": {"text": "x"}, ${json}}`);
    expect(answer.status).toBe(400);
    expect(answer.text).toMatch(words);
  });

  test("__proto__ in an input is a key like any other", async () => {
    const input = '{"text": "x", "__proto__": {"polluted": true}, "constructor": {"prototype": {"polluted": true}}}';
    const answer = await post("ToolService/CallTool", `{"tool": "echo", "input": ${input}}`);
    expect(answer.status).toBe(200);
    expect(answer.text).toContain('"output":"x"');
  });

  test("a body that unpacks to far more than the limit is refused", async () => {
    const bomb = gzipSync(`{"tool": "echo", "input": {"text": "${"0".repeat(64 * 1024 * 1024)}"}}`);
    const answer = await post("ToolService/CallTool", new Uint8Array(bomb), { "content-encoding": "gzip" });
    expect(answer.code).toBe("resource_exhausted");
  });

  test("an unknown rpc, a wrong method and a wrong content type have different statuses", async () => {
    const url = `${service.url}/opencode.tool.v1.ToolService`;
    expect((await post("ToolService/DropTables", "{}")).status).toBe(404);
    expect((await fetch(`${url}/CallTool`)).status).toBe(405);
    expect((await post("ToolService/CallTool", "tool: echo", { "content-type": "text/yaml" })).status).toBe(415);
  });
});

describe("gRPC frames", () => {
  const head = (flags: number, length: number) => {
    const bytes = Buffer.alloc(5);
    bytes.writeUInt8(flags);
    bytes.writeUInt32BE(length, 1);
    return bytes;
  };
  const echo = Buffer.from("\x2a\x04echo");
  const framed = Buffer.concat([head(0, echo.length), echo]);
  // 3 invalid_argument, 8 resource_exhausted; 12 and 13 as gRPC's table of status codes has them for cardinality and compression.
  const cases: [string, number, Buffer][] = [
    ["one that is cut off", 3, Buffer.concat([head(0, 100), Buffer.from("abc")])],
    ["one whose head is cut off", 3, Buffer.from([0, 0])],
    ["one of a length that nobody holds", 8, Buffer.concat([head(0, 0xffffffff), Buffer.from("abc")])],
    ["one that is no message", 3, Buffer.concat([head(0, 4), Buffer.from([0xff, 0xff, 0xff, 0xff])])],
    ["one with a text that is no UTF-8", 3, Buffer.concat([head(0, 4), Buffer.from([0x2a, 0x02, 0xff, 0xfe])])],
    ["one that is compressed without a named encoding", 13, Buffer.concat([head(1, 3), Buffer.from("abc")])],
    ["none", 12, Buffer.alloc(0)],
    ["two", 12, Buffer.concat([framed, framed])],
  ];

  test.each(cases)("%s: the call ends with status %i and words", async (_name, expected, bytes) => {
    const { status, message } = await grpc("CallTool", bytes);
    expect([status, message]).toEqual([expected, expect.stringMatching(/./)]);
  });

  test("a whole one is answered", async () => {
    expect(await grpc("CallTool", framed)).toEqual({ status: 0, message: "" });
  });
});

test("an input or metadata with many levels is refused, and every list of requests can still be read", async () => {
  const levels = (count: number) => `${"[".repeat(count)}1${"]".repeat(count)}`;
  const call = (input: string, metadata = "{}") =>
    post("ToolService/CallTool", `{"tool": "bash", "waitMs": 20000, "input": ${input}, "metadata": ${metadata}}`);
  for (const [field, refused] of [
    ["input", await call(`{"command": "rm x", "more": ${levels(60)}}`)],
    ["metadata", await call('{"command": "rm x"}', `{"more": ${levels(60)}}`)],
  ] as const) {
    expect([refused.status, refused.code]).toEqual([400, "invalid_argument"]);
    expect(refused.message).toBe(`${field} has more than 30 levels`);
  }
  expect((await call(`{"command": "rm x", "more": ${levels(29)}}`)).status).toBe(200);
  const { permissions } = await connect(service, "approver").permissions.listPermissions({});
  const deep = `{"command": "rm y", "more": ${levels(60)}}`;
  const { sessionId = "", id = "" } = permissions.at(-1) ?? {};
  const person = { authorization: "Bearer approver-token-for-tests" };
  const edited = `{"sessionId": "${sessionId}", "permissionId": "${id}", "reply": "PERMISSION_REPLY_ONCE", "input": ${deep}}`;
  for (const refused of [
    await post("ToolService/PlanTool", `{"tool": "bash", "input": ${deep}}`),
    await post("PermissionService/RespondToPermission", edited, person),
    await post("ToolService/BeginCall", beginning(deep), { authorization: "Bearer host-token-for-tests" }),
  ])
    expect([refused.status, refused.message]).toEqual([400, "input has more than 30 levels"]);
  expect(permissions.at(-1)?.view?.input.map(({ path }) => path)).toContain(`/more${"/0".repeat(29)}`);
});

test("bytes that are not HTTP close only their connection", async () => {
  for (const bytes of [
    "\x00\x01\x02\x03\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame at all, not at all",
    "GET\r\n\r\n",
  ]) {
    const socket = dialRaw(Number(new URL(service.url).port), "127.0.0.1").resume();
    socket.on("error", () => undefined).write(bytes);
    await once(socket, "close");
  }
});

test.each([
  ["bash", { command: `cd${" ".repeat(500_000)}|x` }, "command is over 131071 bytes"],
  ["glob", { pattern: "[".repeat(500_000) }, "at most 4096 can be read"],
  ["claude:Glob", { pattern: "[".repeat(500_000) }, "at most 4096 can be read"],
  ["claude:Glob", { pattern: "{a}".repeat(1_300) }, "Use fewer braces"],
])(
  "%s reads a text that is made for its patterns once, and others are answered meanwhile",
  async (tool, input, why) => {
    const { tools } = connect(service, "caller");
    const planned = tools.planTool({ tool, input }).then(
      ({ problem }) => problem?.message,
      (error: Error) => error.message,
    );
    const [message, info] = await Promise.all([planned, tools.getServerInfo({})]);
    expect(message).toContain(why);
    expect(info.limits?.inputBytes).toBeDefined();
  },
);

/** A request to begin a call of an agent's own tool. */
function beginning(input: string): string {
  const named = {
    kind: "claude",
    foreignSession: "f1",
    foreignTool: "Bash",
    foreignCallId: "t1",
    cwd: service.workspace,
  };
  return `${JSON.stringify(named).slice(0, -1)}, "input": ${input}}`;
}

async function post(rpc: string, body: string | Uint8Array<ArrayBuffer>, headers: Record<string, string> = {}) {
  const response = await fetch(`${service.url}/opencode.tool.v1.${rpc}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer caller-token-for-tests", ...headers },
    body,
  });
  const text = await response.text();
  const fields: { code?: string; message?: string } = text === "" ? {} : JSON.parse(text);
  return { status: response.status, text, ...fields };
}

/** Sends bytes as the body of a gRPC request, and returns how it ended. */
async function grpc(rpc: string, bytes: Buffer): Promise<{ status: number; message: string }> {
  const session = dial(service.url);
  const stream = session.request({
    ":method": "POST",
    ":path": `/opencode.tool.v1.ToolService/${rpc}`,
    "content-type": "application/grpc+proto",
    te: "trailers",
    authorization: "Bearer caller-token-for-tests",
  });
  stream.end(bytes);
  try {
    return await endOf(stream);
  } finally {
    session.close();
  }
}

function endOf(stream: ClientHttp2Stream): Promise<{ status: number; message: string }> {
  return new Promise((resolve, reject) => {
    const look = (headers: Record<string, unknown>) => {
      if (headers["grpc-status"] === undefined) return;
      resolve({ status: Number(headers["grpc-status"]), message: String(headers["grpc-message"] ?? "") });
    };
    stream.on("response", look).on("trailers", look).on("error", reject).resume();
    stream.on("close", () => reject(new Error(`the stream ended without a status, code ${stream.rstCode}`)));
  });
}
