import type { DescMethod } from "@bufbuild/protobuf";
import { type Compression, compressedFlag } from "@connectrpc/connect/protocol";
import { notOneMessage } from "../api/request-failure.ts";
import type { Request } from "../http/handler.ts";
import { envelopeBytes } from "./envelope.ts";
import { parseMessage } from "./parse-message.ts";
import { type BodyLimits, readBody, streamBody } from "./request-body.ts";
import { announcedBytes, singleMessage } from "./single-message.ts";
import type { JsonOptions } from "./wire.ts";

/** An rpc whose requests Connect's router reads. */
export interface RoutedRpc {
  method: DescMethod;
  limits: BodyLimits;
  /** Compressions that the server has. */
  compressions: readonly Compression[];
  jsonOptions: JsonOptions;
}

/** Returns true for an rpc that takes one message. */
export function isSingleRequest({ methodKind }: DescMethod): boolean {
  return methodKind === "unary" || methodKind === "server_streaming";
}

/** Passes on the body of a request; refuses, with its reason, what Connect would refuse without one. */
export async function* checkedBody(request: Request, rpc: RoutedRpc): AsyncGenerator<Uint8Array> {
  if (isSingleRequest(rpc.method)) yield await readMessage(request, rpc);
  else yield* streamMessages(request, rpc);
}

/** Reads the body of an rpc that takes one message, and returns it as it is if the message can be read. */
async function readMessage(request: Request, rpc: RoutedRpc): Promise<Buffer> {
  const { method, limits, jsonOptions } = rpc;
  const type = request.headers["content-type"] ?? "";
  const compression = compressionOf(request, rpc);
  const isEnveloped = hasEnvelopes(type);
  const body = await readBody(request, limits, isEnveloped ? { envelopeBytes, announcedIn: announcedBytes } : {});
  const { message, isCompressed } = isEnveloped
    ? singleMessage(body, compression !== undefined)
    : { message: body, isCompressed: compression !== undefined };
  const bytes = isCompressed ? await compression?.decompress(message, limits.maxBytes) : message;
  parseMessage(method.input, bytes ?? message, { isBinary: !type.includes("json"), jsonOptions });
  return body;
}

/** Passes on a stream; refuses one whose first message is compressed although no header says how. */
async function* streamMessages(request: Request, rpc: RoutedRpc): AsyncGenerator<Uint8Array> {
  const { "content-type": type = "" } = request.headers;
  let isChecked = compressionOf(request, rpc) !== undefined || !hasEnvelopes(type);
  for await (const chunk of streamBody(request, rpc.limits)) {
    const [flags] = chunk;
    if (!isChecked && flags !== undefined) {
      isChecked = true;
      if ((flags & compressedFlag) !== 0) throw notOneMessage("internal", "it is compressed, and no header says how");
    }
    yield chunk;
  }
}

/** Returns the compression that the headers name, of those that the server has. */
function compressionOf({ headers }: Request, { compressions }: RoutedRpc): Compression | undefined {
  const type = headers["content-type"] ?? "";
  const header = type.startsWith("application/grpc")
    ? "grpc-encoding"
    : type.startsWith("application/connect")
      ? "connect-content-encoding"
      : "content-encoding";
  return compressions.find(({ name }) => name === headers[header]);
}

/** Returns true for the forms in which each message has an envelope: gRPC, gRPC-Web and Connect's streams. */
function hasEnvelopes(type: string): boolean {
  return /^application\/(grpc|connect)/.test(type);
}
