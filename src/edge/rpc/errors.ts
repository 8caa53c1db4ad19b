import { Code, ConnectError } from "@connectrpc/connect";
import { encodeEnvelope } from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  createEndStreamSerialization,
  endStreamFlag,
  errorToJsonBytes,
} from "@connectrpc/connect/protocol-connect";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { trailerFlag, trailerSerialize } from "@connectrpc/connect/protocol-grpc-web";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type Failures, nameOfReason } from "../api/failures.ts";
import { deadlinePassed, RequestFailure, type Status, statusNumbers } from "../api/request-failure.ts";
import { type Refuse, type Request, type Response, sendWhole } from "../http/handler.ts";
import type { Sink } from "./wire.ts";

/** Returns a failure as Connect sends it; its reason is the first detail. Only this function creates a `ConnectError`. */
export function toConnectError(failure: RequestFailure): ConnectError {
  const { status, message, reason, metadata, details } = failure;
  const info = {
    desc: ErrorInfoSchema,
    value: { reason: nameOfReason(reason), domain: "opencode.tool.v1", metadata },
  };
  const sent = reason === ErrorReason.UNSPECIFIED ? details : [info, ...details];
  return new ConnectError(message, statusNumbers[status], undefined, [...sent], failure);
}

/** Returns the HTTP status of a failure, as Connect maps its codes. */
export function httpStatusOf({ status }: RequestFailure): number {
  return codeToHttpStatus(statusNumbers[status]);
}

/** Classifies an error that Connect threw; undefined if its text is not for the client, or if it is no such error. */
export function connectFailure(error: unknown): RequestFailure | undefined {
  if (error instanceof ConnectError && error.cause instanceof RequestFailure) return error.cause;
  if (!(error instanceof ConnectError) || hiddenCodes.has(error.code)) return undefined;
  if (error.code === Code.DeadlineExceeded) return deadlinePassed();
  const status = statusByNumber.get(error.code);
  const reason = reasonsOfLibrary[status ?? "unknown"] ?? ErrorReason.UNSPECIFIED;
  return status && new RequestFailure(status, error.rawMessage, { reason, cause: error });
}

/** Reasons of the refusals that Connect makes by itself. */
const reasonsOfLibrary: Readonly<Partial<Record<Status, ErrorReason>>> = {
  invalid_argument: ErrorReason.INVALID_MESSAGE,
  unimplemented: ErrorReason.NOT_SERVED,
};

/** Codes of errors whose text is for the operator only. */
const hiddenCodes: ReadonlySet<Code> = new Set([Code.Internal, Code.Unknown]);

const isStatus = (name: string): name is Status => Object.hasOwn(statusNumbers, name);

const statusByNumber: ReadonlyMap<number, Status> = new Map(
  Object.keys(statusNumbers)
    .filter(isStatus)
    .map((status) => [statusNumbers[status], status]),
);

/** Creates the refusal of requests that reach no rpc. */
export function createRefuse({ failureOf }: Pick<Failures, "failureOf">): Refuse {
  return (error, request, response, httpStatus) =>
    sendRefusal({ request, response }, failureOf(error, "http"), httpStatus);
}

/**
 * Sends a failure in the form that the client of the request reads; in Connect's JSON form if the request has no form of an rpc.
 * Only JSON has the HTTP status.
 */
export function sendRefusal(
  { request, response }: { request: Request; response: Response },
  failure: RequestFailure,
  httpStatus?: number,
): void {
  const error = toConnectError(failure);
  const { protocol, type } = formOf(request);
  const trailers = setTrailerStatus(new Headers(), error);
  if (protocol === "grpc") {
    sendTrailers(response, type, trailers);
  } else if (protocol === "grpc-web") {
    sendWhole(response, 200, type, encodeEnvelope(trailerFlag, trailerSerialize(trailers)));
  } else if (protocol === "connect") {
    const end = endStream.serialize({ metadata: new Headers(), error });
    sendWhole(response, 200, type, encodeEnvelope(endStreamFlag, end));
  } else {
    const body = errorToJsonBytes(error, undefined);
    sendWhole(response, httpStatus ?? httpStatusOf(failure), type, body);
  }
}

/** Returns the protocol of a request, if it has one with envelopes, and the content type of a refusal. */
function formOf({ headers }: Request): { protocol?: string; type: string } {
  const type = headers["content-type"] ?? "";
  const known = /^application\/(?:(grpc-web|grpc)(?:\+(?:proto|json))?|(connect)\+(?:proto|json))(?=[+;]|$)/.exec(type);
  const protocol = known?.[1] ?? known?.[2];
  if (known !== null && protocol !== undefined) return { protocol, type: known[0] };
  // Connect's clients read the error of their own content type only, and infer it from the status for any other one.
  const isConnect = /^application\/(proto|json)(;|$)/.test(type);
  return { type: isConnect ? "application/json" : "application/json; charset=utf-8" };
}

const endStream = createEndStreamSerialization(undefined);

function sendTrailers(response: Sink, type: string, trailers: Headers): void {
  response.writeHead(200, { "content-type": type });
  response.addTrailers(Object.fromEntries(trailers));
  response.end();
}
