import { encodeEnvelope } from "@connectrpc/connect/protocol";
import { createEndStreamSerialization, endStreamFlag, errorToJsonBytes } from "@connectrpc/connect/protocol-connect";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { trailerFlag, trailerSerialize } from "@connectrpc/connect/protocol-grpc-web";
import type { Failures } from "../api/failures.ts";
import type { RequestFailure } from "../api/request-failure.ts";
import type { Refuse, Request, Response } from "../http/handler.ts";
import { sendWhole } from "../http/mounts.ts";
import { httpStatusOf, toConnectError } from "./errors.ts";
import type { Sink } from "./wire.ts";

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
