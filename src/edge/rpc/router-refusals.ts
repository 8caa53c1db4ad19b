import { Code, ConnectError } from "@connectrpc/connect";
import type { Compression } from "@connectrpc/connect/protocol";
import { parseTimeout as parseConnectTimeout } from "@connectrpc/connect/protocol-connect";
import { parseTimeout as parseGrpcTimeout } from "@connectrpc/connect/protocol-grpc";
import type { EdgeLimits } from "../api/edge-context.ts";
import type { Failures } from "../api/failures.ts";
import { notServed, RequestFailure, requestTooLarge, unreadableRequest } from "../api/request-failure.ts";

/** Returns failures with REQUEST_TOO_LARGE for what Connect refuses as too large without a reason. */
export function refuseLarge(failures: Failures, maxBytes: number): Failures {
  const isLarge = (error: unknown) =>
    error instanceof ConnectError && error.code === Code.ResourceExhausted && !(error.cause instanceof RequestFailure);
  return {
    failureOf: (error, ...request) =>
      failures.failureOf(isLarge(error) ? requestTooLarge(maxBytes) : error, ...request),
  };
}

/** Returns a compression that reports bytes which are not compressed by it as the client's error. */
export function reportUnreadable(compression: Compression, report: (error: unknown) => ConnectError): Compression {
  return {
    ...compression,
    async decompress(bytes, readMaxBytes) {
      try {
        return await compression.decompress(bytes, readMaxBytes);
      } catch (error) {
        const isInternal = error instanceof ConnectError && error.code === Code.Internal;
        throw report(isInternal ? unreadableRequest(error.rawMessage) : error);
      }
    },
  };
}

/** Refuses a deadline that cannot be read or is too far away. */
export function checkTimeout(headers: Headers, { maxDeadlineMs }: EdgeLimits): void {
  const isGrpc = headers.get("content-type")?.startsWith("application/grpc") === true;
  const { error } = isGrpc
    ? parseGrpcTimeout(headers.get("grpc-timeout"), maxDeadlineMs)
    : parseConnectTimeout(headers.get("connect-timeout-ms"), maxDeadlineMs);
  if (error !== undefined) throw error;
}

/** Refuses a request in a compression that this server does not have. */
export function checkCompression(headers: Headers, available: readonly Compression[]): void {
  const names = ["identity", ...available.map(({ name }) => name)];
  for (const header of ["grpc-encoding", "content-encoding", "connect-content-encoding"]) {
    const encoding = headers.get(header);
    if (encoding === null || names.includes(encoding)) continue;
    throw notServed(
      "unimplemented",
      `the request has ${header} "${encoding}", which is not served; use ${names.join(", ")}`,
    );
  }
}
