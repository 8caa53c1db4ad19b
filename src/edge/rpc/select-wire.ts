import type { Request } from "../http/handler.ts";
import { connectJsonWire, connectProtoWire } from "./connect-wire.ts";
import { grpcWire } from "./grpc-wire.ts";
import type { Wire } from "./wire.ts";

/** Returns the wire of an uncompressed request by gRPC or by unary Connect; undefined for any other form. */
export function selectWire({ method, headers }: Request, kind: "unary" | "server_streaming"): Wire | undefined {
  if (method !== "POST") return undefined;
  if (isCompressed(headers["grpc-encoding"]) || isCompressed(headers["content-encoding"])) return undefined;
  const type = headers["content-type"];
  if (type === "application/grpc" || type === "application/grpc+proto") return grpcWire;
  if (type === "application/proto" && kind === "unary") return connectProtoWire;
  if (type === "application/json" && kind === "unary") return connectJsonWire;
  return undefined;
}

function isCompressed(encoding: string | readonly string[] | undefined): boolean {
  return encoding !== undefined && encoding !== "identity";
}
