import type { Socket } from "node:net";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";

/** Sends one request to the ToolService and returns its answer, both in proto JSON. */
export type SendRequest = (method: string, message: JsonObject, timeoutMs: number) => Promise<JsonObject>;

/** The service refused a request, or there is no answer of it. */
export class RefusedRequest extends Error {
  override name = "RefusedRequest";
  /** The code of Connect, such as `unavailable`. */
  readonly code: string;
  /** The reason (ErrorInfo); empty if the service gave none. */
  readonly reason: string;
  /** The fields of the reason, such as an id. */
  readonly metadata: JsonObject;
  constructor(message: string, code: string, { reason, metadata }: { reason?: JsonValue; metadata?: JsonValue } = {}) {
    super(message);
    this.code = code;
    this.reason = typeof reason === "string" ? reason : "";
    this.metadata = isObject(metadata) ? metadata : {};
  }
}

/** Creates a sender by Connect's JSON over HTTP/1.1. Each request has its own connection, which `open` verifies. */
export function createSender(url: string, token: string, open: () => Promise<Socket>): SendRequest {
  return async (method, message, timeoutMs) => {
    const socket = await open();
    try {
      const { status, text } = await exchange(socket, { url, token, method, body: JSON.stringify(message), timeoutMs });
      return readAnswer(url, status, text);
    } finally {
      socket.destroy();
    }
  };
}

interface HttpResponse {
  status: number;
  text: string;
}

interface Exchange {
  url: string;
  token: string;
  method: string;
  body: string;
  timeoutMs: number;
}

/** Sends one HTTP request and reads the whole response. Loading the client of Node would take longer than the exchange. */
function exchange(socket: Socket, { url, token, method, body, timeoutMs }: Exchange): Promise<HttpResponse> {
  const { host, pathname } = new URL(url);
  const head = [
    `POST ${pathname.replace(/\/$/, "")}/opencode.tool.v1.ToolService/${method} HTTP/1.1`,
    ...[`host: ${host}`, `authorization: Bearer ${token}`, "connection: close"],
    ...["content-type: application/json", "connect-protocol-version: 1", `connect-timeout-ms: ${timeoutMs}`],
    `content-length: ${Buffer.byteLength(body)}`,
  ];
  return new Promise((resolve, reject) => {
    let received = Buffer.alloc(0);
    const fail = (code: string, why: string) => reject(new RefusedRequest(`the service at ${url} ${why}`, code));
    const timer = setTimeout(fail, timeoutMs, "deadline_exceeded", "did not answer in time");
    socket
      .on("data", (piece) => {
        received = Buffer.concat([received, piece]);
        try {
          const response = readResponse(received);
          if (response !== undefined) resolve(response);
        } catch (error) {
          fail("unknown", `sent what is no answer: ${String(error)}`);
        }
      })
      .once("error", ({ message }) => fail("unavailable", `closed the connection (${message})`))
      .once("close", () => {
        clearTimeout(timer);
        fail("unavailable", "closed the connection without an answer");
      })
      .write(`${head.join("\r\n")}\r\n\r\n${body}`);
  });
}

/** Reads a response of HTTP/1.1; undefined as long as it is not complete. */
function readResponse(bytes: Buffer): HttpResponse | undefined {
  if (bytes.length > maxAnswerBytes) throw new Error("it is too large");
  const end = bytes.indexOf("\r\n\r\n");
  const head = bytes.toString("latin1", 0, end < 0 ? bytes.length : end);
  const [, status] = /^HTTP\/1\.1 ([2-5]\d\d)[ \r]/.exec(head) ?? [];
  if (end < 0 && head.length < minHeadBytes) return undefined;
  if (status === undefined) throw new Error("it is not HTTP/1.1");
  if (end < 0) return undefined;
  const rest = bytes.subarray(end + 4);
  const length = /\r\ncontent-length: *(\d{1,9})(?:\r|$)/i.exec(head)?.[1];
  const isChunked = /\r\ntransfer-encoding: *chunked *(?:\r|$)/i.test(head);
  if (isChunked === (length !== undefined)) throw new Error("its length is unknown");
  const body = isChunked ? joinChunks(rest) : wholeBody(rest, Number(length));
  return body && { status: Number(status), text: body.toString() };
}

function wholeBody(rest: Buffer, length: number): Buffer | undefined {
  return rest.length < length ? undefined : rest.subarray(0, length);
}

function joinChunks(rest: Buffer): Buffer | undefined {
  const chunks: Buffer[] = [];
  for (let at = 0; ; ) {
    const line = rest.indexOf("\r\n", at);
    if (line < 0) return undefined;
    const [, digits] = /^([\da-f]{1,7})(?:;|$)/i.exec(rest.toString("latin1", at, line)) ?? [];
    if (digits === undefined) throw new Error("a chunk has no size");
    const from = line + 2;
    const to = from + Number.parseInt(digits, 16);
    if (to === from) return Buffer.concat(chunks);
    if (rest.length < to + 2) return undefined;
    chunks.push(rest.subarray(from, to));
    at = to + 2;
  }
}

const maxAnswerBytes = 16 * 1_048_576;
/** Length of `HTTP/1.1 200` and the character after it. */
const minHeadBytes = 13;

function readAnswer(url: string, status: number, text: string): JsonObject {
  const answer = parseObject(text);
  if (status === 200 && answer !== undefined) return answer;
  const code = status >= 502 && status <= 504 ? "unavailable" : "unknown";
  const strange = () => new RefusedRequest(`the program at ${url} answered ${status}, and not as Toolgate does`, code);
  if (answer === undefined || typeof answer.code !== "string" || status === 200) throw strange();
  const details = Array.isArray(answer.details) ? answer.details.filter((detail) => isObject(detail)) : [];
  const info = details.find(({ type }) => type === "google.rpc.ErrorInfo")?.debug;
  throw new RefusedRequest(String(answer.message ?? ""), answer.code, isObject(info) ? info : {});
}

function parseObject(text: string): JsonObject | undefined {
  try {
    const value: JsonValue = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
