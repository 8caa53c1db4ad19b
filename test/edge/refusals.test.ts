import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { type ClientHttp2Session, connect } from "node:http2";
import { gzipSync } from "node:zlib";
import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { endStreamFlag, endStreamFromJson, errorFromJsonBytes } from "@connectrpc/connect/protocol-connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { trailerFlag, trailerParse } from "@connectrpc/connect/protocol-grpc-web";
import { describe, expect, onTestFinished, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { createBrowserSignIn } from "../../src/edge/api/browser-sign-in.ts";
import type { EdgeContext } from "../../src/edge/api/rpc.ts";
import { startServer } from "./server.ts";

/** A form of a request: its protocol, and whether the rpc answers with a stream. */
interface Form {
  type: string;
  /** True if each message has an envelope. */
  isEnveloped: boolean;
  isStream: boolean;
  /** Headers in which this protocol names an encoding and a deadline. */
  encoding: string;
  timeout: string;
  errorOf(answer: Answer): ConnectError | undefined;
}

interface Answer {
  fields: Headers;
  body: Buffer;
}

const inTrailers = ({ fields }: Answer) => findTrailerError(fields);
const inJson = ({ body, fields }: Answer) =>
  fields.get("content-type") === "application/json"
    ? errorFromJsonBytes(body, undefined, new ConnectError("no JSON"))
    : undefined;
const inTrailerEnvelope = ({ body }: Answer) => findTrailerError(trailerParse(lastEnvelope(body, trailerFlag)));
const inEndStream = ({ body }: Answer) => endStreamFromJson(lastEnvelope(body, endStreamFlag)).error;

const grpc = { isEnveloped: true, encoding: "grpc-encoding", timeout: "grpc-timeout" };
const connectUnary = { encoding: "content-encoding", timeout: "connect-timeout-ms", isEnveloped: false };
const connectStream = { encoding: "connect-content-encoding", timeout: "connect-timeout-ms", isEnveloped: true };
const forms: Readonly<Record<string, Form>> = {
  gRPC: { ...grpc, type: "application/grpc", isStream: false, errorOf: inTrailers },
  "gRPC stream": { ...grpc, type: "application/grpc+proto", isStream: true, errorOf: inTrailers },
  "gRPC-Web": { ...grpc, type: "application/grpc-web+proto", isStream: false, errorOf: inTrailerEnvelope },
  "gRPC-Web stream": { ...grpc, type: "application/grpc-web", isStream: true, errorOf: inTrailerEnvelope },
  "Connect unary": { ...connectUnary, type: "application/proto", isStream: false, errorOf: inJson },
  "Connect JSON": { ...connectUnary, type: "application/json", isStream: false, errorOf: inJson },
  "Connect stream": { ...connectStream, type: "application/connect+proto", isStream: true, errorOf: inEndStream },
};

/** A way to be refused: how the server is set up, and the request. */
interface Refusal {
  reason: keyof typeof ErrorReason;
  config?: NonNullable<Parameters<typeof startServer>[1]>["config"] | { limits: Partial<Limits> };
  /** True if the service has no function for the rpc. */
  isAbsent?: true;
  /** Replaces the rpc's function. */
  serve?: (context: EdgeContext) => Promise<never>;
  headers?: (form: Form) => Record<string, string>;
  /** Replaces the rpc; a path. */
  path?: string;
  /** Replaces the message. */
  message?: MessageInitShape<typeof CallToolRequestSchema>;
  /** Replaces the whole body; undefined if the form has no such body. */
  body?: (message: Buffer, form: Form) => Buffer | undefined;
  /** True if the body never ends. */
  isUnfinished?: boolean;
  /** Runs before the request; returns what runs once it was sent. */
  before?: (server: Server, session: ClientHttp2Session) => Promise<unknown>;
  after?: (server: Server) => unknown;
}

type Server = Awaited<ReturnType<typeof startServer>>;
type Limits = NonNullable<NonNullable<NonNullable<Parameters<typeof startServer>[1]>["config"]>["limits"]>;

const service = "/opencode.tool.v1.ToolService/";
const authorization = "Bearer caller-token";
const token = (value: string) => ({ headers: () => ({ authorization: `Bearer ${value}` }) });
const encoded = (name: string) => ({ headers: (form: Form) => ({ [form.encoding]: name }) });
const timeout = (connectMs: string, grpcText: string) => ({
  headers: (form: Form) => ({ [form.timeout]: form.timeout === "grpc-timeout" ? grpcText : connectMs }),
});
const enveloped = (body: (message: Buffer) => Buffer) => ({
  body: (message: Buffer, { isEnveloped }: Form) => (isEnveloped ? body(message) : undefined),
});
const binary = (message: Buffer, form: Form) => (form.isEnveloped ? envelope(message) : message);
const untilAborted = async ({ signal }: EdgeContext): Promise<never> => {
  if (!signal.aborted) await once(signal, "abort");
  throw signal.reason;
};

const refusals: Readonly<Record<string, Refusal>> = {
  "no token": { reason: "UNAUTHENTICATED", headers: () => ({ authorization: "" }) },
  "an unknown token": { reason: "UNAUTHENTICATED", ...token("who-is-this") },
  "the cookie of a browser from another page": {
    reason: "ORIGIN_REFUSED",
    headers: () => ({
      authorization: "",
      cookie: `${createBrowserSignIn(() => "sto_test").cookieName()}=half`,
      origin: "https://evil.example",
    }),
  },
  "a role that may not call the rpc": { reason: "ROLE_MISSING", ...token("watcher-token") },
  "an unknown host": { reason: "HOST_REFUSED", headers: () => ({ ":authority": "evil.example" }) },
  "an unknown rpc": { reason: "NOT_SERVED", path: `${service}NoSuchRpc` },
  "an unknown service": { reason: "NOT_SERVED", path: "/no.such.Service/CallTool" },
  "an rpc that is not implemented": { reason: "NOT_SERVED", isAbsent: true },
  "an unknown compression": { reason: "NOT_SERVED", ...encoded("zstd") },
  "a message that breaks a rule": { reason: "INVALID_MESSAGE", message: { tool: "bash", callId: "with space" } },
  "bytes that are no message": {
    reason: "INVALID_MESSAGE",
    body: (_, form) => binary(Buffer.from([0x0a, 0x7f, 1]), form),
  },
  "no message": { reason: "INVALID_MESSAGE", ...enveloped(() => Buffer.alloc(0)) },
  "two messages": {
    reason: "INVALID_MESSAGE",
    ...enveloped((message) => Buffer.concat([envelope(message), envelope(message)])),
  },
  "part of an envelope": { reason: "INVALID_MESSAGE", ...enveloped(() => Buffer.from([0, 0])) },
  "part of a message": { reason: "INVALID_MESSAGE", ...enveloped((message) => envelope(message).subarray(0, -1)) },
  "unknown flags of an envelope": { reason: "INVALID_MESSAGE", ...enveloped((message) => envelope(message, 4)) },
  "a compressed message without an encoding": {
    reason: "INVALID_MESSAGE",
    ...enveloped((message) => envelope(gzipSync(message), 1)),
  },
  "bytes that are not compressed as the header says": {
    reason: "INVALID_MESSAGE",
    ...encoded("gzip"),
    body: (message, form) => (form.isEnveloped ? envelope(message, 1) : message),
  },
  "a compressed message that is cut off": {
    reason: "INVALID_MESSAGE",
    ...encoded("gzip"),
    body(message, form) {
      const cut = gzipSync(message).subarray(0, -8);
      return form.isEnveloped ? envelope(cut, 1) : cut;
    },
  },
  "a compressed message that is not one": {
    reason: "INVALID_MESSAGE",
    ...encoded("gzip"),
    body(_, form) {
      const packed = gzipSync(Buffer.from([0x0a, 0x7f, 1]));
      return form.isEnveloped ? envelope(packed, 1) : packed;
    },
  },
  "a body over the limit": {
    reason: "REQUEST_TOO_LARGE",
    config: { limits: { requestBytes: 1_000 } },
    body: (_, form) => binary(Buffer.alloc(1_001), form),
  },
  "a body that is over the limit once it is decompressed": {
    reason: "REQUEST_TOO_LARGE",
    config: { limits: { requestBytes: 1_000 } },
    ...encoded("gzip"),
    body(_, form) {
      const packed = gzipSync(Buffer.alloc(1_001));
      return form.isEnveloped ? envelope(packed, 1) : packed;
    },
  },
  "a body that does not arrive in time": {
    reason: "BODY_TIMEOUT",
    config: { limits: { bodyMs: 20 } },
    isUnfinished: true,
    body: () => Buffer.from([0, 0]),
  },
  "no memory for the body": {
    reason: "OVERLOADED",
    config: { limits: { requestBytes: 2_000, bufferedBytes: 2_000 } },
    async before({ url }, session) {
      const held = open(session, `${service}CallTool`, { "content-type": "application/grpc" });
      held.write(envelope(Buffer.alloc(1_500)).subarray(0, -1));
      while (!(await metricsOf(url)).includes("toolgate_buffered_bytes 1504\n"));
    },
    body: (_, form) => binary(Buffer.alloc(1_000), form),
  },
  "too many open requests without a token": {
    reason: "OVERLOADED",
    config: { limits: { requestsWithoutToken: 1 } },
    headers: () => ({ authorization: "" }),
    async before(_, session) {
      const watch = open(session, "/grpc.health.v1.Health/Watch", {
        "content-type": "application/grpc",
        authorization: "",
      });
      watch.end(Buffer.alloc(5));
      await once(watch, "response");
    },
  },
  "a deadline that is not one": { reason: "INVALID_MESSAGE", ...timeout("soon", "soon") },
  "a deadline that is too far away": { reason: "INVALID_MESSAGE", ...timeout("9999999999", "99999999H") },
  "a deadline that passes": { reason: "DEADLINE_PASSED", ...timeout("20", "20m"), serve: untilAborted },
  "a replica that drains": {
    reason: "DRAINING",
    serve: untilAborted,
    after: (server) => server.close(60_000),
  },
};

describe.each(Object.entries(refusals))("%s", (_, refusal) => {
  test.each(Object.keys(forms))(`is refused as ${refusal.reason} in the form of %s`, async (name) => {
    const form = forms[name];
    if (form === undefined) throw new Error(`unknown form ${name}`);
    const error = await refusalOf(form, refusal);
    if (error === "none") return;
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: refusal.reason, domain: "opencode.tool.v1" }]);
    expect(error.rawMessage).not.toBe("");
  });
});

test.each(Object.keys(forms))("each reason that a service gives reaches a client of %s", async (name) => {
  const form = forms[name];
  if (form === undefined) throw new Error(`unknown form ${name}`);
  const reasons = Object.entries(ErrorReason).filter(([reason]) => reason !== "UNSPECIFIED");
  let reason: ErrorReason = ErrorReason.UNSPECIFIED;
  const { ask } = await start(form, {
    serve: async () => {
      throw new RequestError(reason, "no", { field: "x" });
    },
  });
  for (const [sent, number] of reasons) {
    reason = number;
    const error = await ask();
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: sent, metadata: { field: "x" } }]);
  }
});

test("an unexpected error has no reason, and only the id of its log line", async () => {
  for (const form of Object.values(forms)) {
    const { ask } = await start(form, { serve: () => Promise.reject(new Error("disk on fire")) });
    const error = await ask();
    expect([error.code, error.details.length]).toEqual([Code.Internal, 0]);
    expect(error.rawMessage).toMatch(/^internal error, request id \S+$/);
  }
});

test.each([
  ["GET", "application/json", 405],
  ["POST", "image/jpeg", 415],
  ["POST", "application/connect+proto", 415],
] as const)("%s by %s has no form of an unary rpc and is refused as NOT_SERVED", async (method, type, status) => {
  const server = await startServer();
  const body = method === "POST" ? "{}" : null;
  const headers = { "content-type": type, authorization };
  const response = await fetch(`${server.url}${service}GetServerInfo`, { method, headers, body });
  const text = await response.text();
  expect(text).toContain("NOT_SERVED");
  if (!type.startsWith("application/connect")) expect(response.status).toBe(status);
});

test("each reason that the edge itself gives has a row in this table", () => {
  const rows = Object.values(refusals).map(({ reason }) => reason);
  expect(edgeReasons().filter((reason) => !rows.includes(reason))).toEqual([]);
  expect(edgeReasons()).toContain("OVERLOADED");
});

/** Returns the reasons that the edge's own code names; what its services name is theirs. */
function edgeReasons(): (keyof typeof ErrorReason)[] {
  const files = ["", "api", "http", "rpc"].flatMap((directory) =>
    readdirSync(`src/edge/${directory}`).map((file) => `src/edge/${directory}/${file}`),
  );
  const own = files.filter((file) => /\.ts$/.test(file) && !/service|tool-|watch|store-mark|failures|merge/.test(file));
  const names = own.flatMap((file) => [...readFileSync(file, "utf8").matchAll(/\bErrorReason\.(\w+)/g)]);
  return [...new Set(names.map(([, name]) => name as keyof typeof ErrorReason))].filter(
    (name) => name !== "UNSPECIFIED",
  );
}

/** Returns the error of a refused request; "none" if the form has no such request. */
async function refusalOf(form: Form, refusal: Refusal): Promise<ConnectError | "none"> {
  const { server, session, ask, body } = await start(form, refusal);
  if (body === undefined) return "none";
  await refusal.before?.(server, session);
  return await ask(() => refusal.after?.(server));
}

/** Starts a server and a connection. */
async function start(form: Form, refusal: Omit<Refusal, "reason">) {
  const serve = refusal.serve ?? (() => Promise.reject(new Error("the request was not refused")));
  const entered = Promise.withResolvers<void>();
  const given = refusal.config?.limits;
  const config = given && { limits: { ...readLimits(), ...given } };
  const server = await startServer(
    refusal.isAbsent === true
      ? {}
      : {
          callTool(_request, context) {
            entered.resolve();
            return serve(context);
          },
          // biome-ignore lint/correctness/useYield: it fails before its first message.
          async *executeTool(_request, context) {
            entered.resolve();
            await serve(context);
          },
        },
    config ? { config } : {},
  );
  const session = connect(server.url);
  session.on("error", () => undefined);
  onTestFinished(() => session.destroy());
  const message = messageOf(form, refusal.message ?? { tool: "echo", sessionId: "ses_1", callId: "c1" });
  const body = refusal.body === undefined ? binary(message, form) : refusal.body(message, form);
  const ask = async (onEntered: () => unknown = () => undefined): Promise<ConnectError> => {
    entered.promise.then(onEntered);
    const path = refusal.path ?? `${service}${form.isStream ? "ExecuteTool" : "CallTool"}`;
    const stream = open(session, path, { "content-type": form.type, ...refusal.headers?.(form) });
    stream[refusal.isUnfinished ? "write" : "end"](body);
    const error = form.errorOf(await answerOf(stream));
    if (error === undefined) throw new Error("the request was not refused in its form");
    return error;
  };
  return { server, session, ask, body };
}

function messageOf({ type }: Form, value: MessageInitShape<typeof CallToolRequestSchema>): Buffer {
  if (type === "application/json") return Buffer.from(JSON.stringify(value));
  return Buffer.from(toBinary(CallToolRequestSchema, create(CallToolRequestSchema, value)));
}

function open(session: ClientHttp2Session, path: string, headers: Record<string, string>) {
  const all = { ":method": "POST", ":path": path, te: "trailers", authorization, ...headers };
  const set = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== ""));
  const stream = session.request(set);
  stream.on("error", () => undefined);
  return stream;
}

async function answerOf(stream: ReturnType<typeof open>): Promise<Answer> {
  const fields = new Headers();
  const chunks: Buffer[] = [];
  const take = (headers: object) => {
    for (const [name, value] of Object.entries(headers)) if (!name.startsWith(":")) fields.set(name, String(value));
  };
  stream.on("response", take).on("trailers", take);
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  await once(stream, "end");
  return { fields, body: Buffer.concat(chunks) };
}

function envelope(message: Uint8Array, flags = 0): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

/** Returns the content of the envelope with these flags. */
function lastEnvelope(body: Buffer, flags: number): Buffer {
  for (let at = 0; at + 5 <= body.length; ) {
    const end = at + 5 + body.readUInt32BE(at + 1);
    if (body[at] === flags) return body.subarray(at + 5, end);
    at = end;
  }
  throw new Error(`the response has no envelope with the flags ${flags}: ${body.toString("latin1")}`);
}

async function metricsOf(url: string): Promise<string> {
  return await (await fetch(`${url}/metrics`, { headers: { authorization: "Bearer admin-token" } })).text();
}
