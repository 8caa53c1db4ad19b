import type { Compression } from "@connectrpc/connect/protocol";
import type { Request } from "../http/handler.ts";
import { connectStreamJsonWire, connectStreamProtoWire } from "./connect-stream-wire.ts";
import { connectJsonWire, connectProtoWire } from "./connect-wire.ts";
import { grpcJsonWire, grpcProtoWire } from "./grpc-wire.ts";
import type { SingleWire, StreamWire } from "./wire.ts";

/** Returns the wire of an uncompressed request by gRPC or by unary Connect; undefined for any other form. */
export function selectWire({ method, headers }: Request, kind: "unary" | "server_streaming"): SingleWire | undefined {
  if (method !== "POST") return undefined;
  if (isCompressed(headers["grpc-encoding"]) || isCompressed(headers["content-encoding"])) return undefined;
  const type = headers["content-type"];
  if (type === "application/grpc" || type === "application/grpc+proto") return grpcProtoWire;
  if (type === "application/proto" && kind === "unary") return connectProtoWire;
  if (type === "application/json" && kind === "unary") return connectJsonWire;
  return undefined;
}

/** Returns the wire of a stream in both directions, which needs HTTP/2; undefined for a form that the router serves or refuses. */
export function selectStreamWire(
  { method, headers, httpVersionMajor }: Request,
  available: readonly Compression[],
): StreamWire | undefined {
  if (method !== "POST" || httpVersionMajor < 2 || isCompressed(headers["content-encoding"])) return undefined;
  const wire = streamWires[headers["content-type"] ?? ""];
  const encoding = wire && headers[wire.encodingHeader];
  return isCompressed(encoding) && !available.some(({ name }) => name === encoding) ? undefined : wire;
}

const streamWires: Readonly<Record<string, StreamWire>> = {
  "application/grpc": grpcProtoWire,
  "application/grpc+proto": grpcProtoWire,
  "application/grpc+json": grpcJsonWire,
  "application/connect+proto": connectStreamProtoWire,
  "application/connect+json": connectStreamJsonWire,
};

function isCompressed(encoding: string | readonly string[] | undefined): boolean {
  return encoding !== undefined && encoding !== "identity";
}
