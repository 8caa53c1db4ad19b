import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
import { RetryInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";

/** Numbers of the gRPC codes, by the names that the contract's comments and Connect's JSON use. */
export const statusNumbers = {
  canceled: 1,
  unknown: 2,
  invalid_argument: 3,
  deadline_exceeded: 4,
  not_found: 5,
  already_exists: 6,
  permission_denied: 7,
  resource_exhausted: 8,
  failed_precondition: 9,
  aborted: 10,
  out_of_range: 11,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
  data_loss: 15,
  unauthenticated: 16,
} as const;

/** Status of a failed request. */
export type Status = keyof typeof statusNumbers;

/** Message that is attached to a failure. */
export interface FailureDetail<Desc extends DescMessage = DescMessage> {
  desc: Desc;
  value: MessageInitShape<Desc>;
}

/** A failed request in the form in which every door reports it. Its message is for the client. */
export class RequestFailure extends Error {
  override name = "RequestFailure";
  readonly status: Status;
  /** Cause in the contract's terms; UNSPECIFIED if it has none for this failure. */
  readonly reason: ErrorReason;
  readonly metadata: Readonly<Record<string, string>>;
  readonly details: readonly FailureDetail[];
  constructor(
    status: Status,
    message: string,
    options: {
      reason?: ErrorReason;
      metadata?: Readonly<Record<string, string>>;
      details?: readonly FailureDetail[];
      cause?: unknown;
    } = {},
  ) {
    super(sendable(message), { cause: options.cause });
    this.status = status;
    this.reason = options.reason ?? ErrorReason.UNSPECIFIED;
    const { metadata = {} } = options;
    this.metadata = Object.fromEntries(Object.entries(metadata).map(([name, value]) => [name, sendable(value)]));
    this.details = options.details ?? [];
  }
}

const maxTextLength = 1_024;

/**
 * Makes text that may quote a request fit to be sent: lone surrogates cannot be, and gRPC has 64 KiB for all trailers, beyond which
 * the connection ends for every request on it.
 */
function sendable(text: string): string {
  return (text.length > maxTextLength ? `${text.slice(0, maxTextLength)}…` : text).toWellFormed();
}

/** Returns the refusal of a request with a field that does not fit. */
export function invalidField(field: string, message: string): RequestFailure {
  return new RequestFailure("invalid_argument", message, { reason: ErrorReason.INVALID_MESSAGE, metadata: { field } });
}

/** Returns the abort reason of a request whose client does not wait for the response. */
export function clientLeft(): RequestFailure {
  return new RequestFailure("canceled", "the client left before it was answered");
}

/** Returns the abort reason of a request whose deadline has passed. */
export function deadlinePassed(): RequestFailure {
  const message =
    "the deadline that the client set has passed; send the request again with the same ids to attach to it";
  return new RequestFailure("deadline_exceeded", message, { reason: ErrorReason.DEADLINE_PASSED });
}

/** Header with the service's time in ms: GetServerInfo returns it, and an answer that repeats it is refused when it arrives late. */
export const timeHeader = "toolgate-time";

/** Returns the refusal of an answer that was on its way for too long. */
export function answerTooLate(): RequestFailure {
  const message = `the answer arrived later than 10 s after its ${timeHeader}; look at the request and answer it again`;
  return new RequestFailure("deadline_exceeded", message, { reason: ErrorReason.DEADLINE_PASSED });
}

/** Returns the refusal of a request that is over the size limit. */
export function requestTooLarge(maxBytes: number): RequestFailure {
  return new RequestFailure(
    "resource_exhausted",
    `the request is over the limit of ${maxBytes} bytes (limits.request_bytes of GetServerInfo); send less`,
    { reason: ErrorReason.REQUEST_TOO_LARGE, metadata: { limit: String(maxBytes) } },
  );
}

/** Returns the refusal of a message that is over the size limit of its stream. */
export function messageTooLarge(maxBytes: number): RequestFailure {
  return new RequestFailure(
    "resource_exhausted",
    `a message of the stream is over the limit of ${maxBytes} bytes; open the stream again and send smaller messages`,
    { reason: ErrorReason.REQUEST_TOO_LARGE, metadata: { limit: String(maxBytes) } },
  );
}

/** Returns the refusal of a request whose body did not arrive in time. */
export function bodyTimedOut(maxMs: number): RequestFailure {
  return new RequestFailure(
    "deadline_exceeded",
    `the body of the request did not arrive within ${maxMs} ms; send it faster, or raise body_ms in [limits]`,
    { reason: ErrorReason.BODY_TIMEOUT },
  );
}

/** Returns the refusal of a request for which the service has no capacity now; `limit` is the name of a setting. */
export function overloaded(limit: string, fact: string): RequestFailure {
  return new RequestFailure(
    "resource_exhausted",
    `${fact}, the limit ${limit} of this server; wait for earlier requests to end, then send it again`,
    {
      reason: ErrorReason.OVERLOADED,
      metadata: { limit },
      details: [{ desc: RetryInfoSchema, value: { retryDelay: { seconds: 1n } } }],
    },
  );
}

/** Returns the refusal of an rpc, a service, a compression or a form of request that this server does not have. */
export function notServed(status: "unimplemented" | "not_found" | "unknown", message: string): RequestFailure {
  return new RequestFailure(status, message, { reason: ErrorReason.NOT_SERVED });
}

/** Returns the refusal of bytes that are not the message that the rpc takes. */
export function unreadableRequest(cause: unknown): RequestFailure {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestFailure("invalid_argument", `the request cannot be read: ${fact}`, {
    reason: ErrorReason.INVALID_MESSAGE,
    cause,
  });
}

/**
 * Returns the refusal of a body that is not the one message that the rpc takes. gRPC's status for a wrong number of messages is
 * unimplemented, for a compressed message without an encoding internal.
 */
export function notOneMessage(status: "invalid_argument" | "unimplemented" | "internal", fact: string): RequestFailure {
  const message = `the request must be one message, but ${fact}; send exactly one`;
  return new RequestFailure(status, message, { reason: ErrorReason.INVALID_MESSAGE });
}

/** Returns the refusal of a stream whose bytes are not messages. gRPC's status for a message without its encoding is internal. */
export function unreadableStream(status: "invalid_argument" | "internal", fact: string): RequestFailure {
  const message = `the stream of requests cannot be read: ${fact}; open it again and send whole messages`;
  return new RequestFailure(status, message, { reason: ErrorReason.INVALID_MESSAGE });
}
