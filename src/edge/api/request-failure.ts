import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
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
    // Text quoted from a request may hold lone surrogates, which cannot be sent.
    super(message.toWellFormed(), { cause: options.cause });
    this.status = status;
    this.reason = options.reason ?? ErrorReason.UNSPECIFIED;
    this.metadata = options.metadata ?? {};
    this.details = options.details ?? [];
  }
}

/** Returns the abort reason of a request whose client does not wait for the response. */
export function clientLeft(): RequestFailure {
  return new RequestFailure("canceled", "the client left before it was answered");
}

/** Returns the abort reason of a request whose deadline has passed. */
export function deadlinePassed(): RequestFailure {
  return new RequestFailure("deadline_exceeded", "the deadline has passed");
}

/** Returns the refusal of a request that is over the size limit. */
export function requestTooLarge(maxBytes: number): RequestFailure {
  return new RequestFailure(
    "resource_exhausted",
    `the request is over the limit of ${maxBytes} bytes (limits.request_bytes of GetServerInfo); send less`,
  );
}

/** Returns the refusal of bytes that are not the message that the rpc takes. */
export function unreadableRequest(cause: unknown): RequestFailure {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return invalidMessage(`the request cannot be read: ${fact}`);
}

/** Returns the refusal of a body that is not the one message that the rpc takes. */
export function notOneMessage(fact: string): RequestFailure {
  return invalidMessage(`the request must be one message, but ${fact}`);
}

function invalidMessage(message: string): RequestFailure {
  return new RequestFailure("invalid_argument", message, { reason: ErrorReason.INVALID_MESSAGE });
}
