import { type Violation, violationsToProto } from "@bufbuild/protovalidate";
import { ViolationsSchema } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionSettledSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";

/** Turns whatever was thrown into what a client is told. Nothing else in the service makes a `ConnectError`. */
export interface Errors {
  /** `signal` is the request's: an abort is told by its reason. What is not classified is logged once and kept back. */
  toConnectError(error: unknown, rpc: string, signal?: AbortSignal): ConnectError;
  /** Does it for every rpc, also for what is thrown in the middle of a response stream. It goes before all others. */
  interceptor: Interceptor;
}

/** Creates the translation; `newId` makes the ids by which a client's report is found in the log. */
export function createErrors(options: { log: Logger; newId: () => string }): Errors {
  const { log, newId } = options;

  const toConnectError: Errors["toConnectError"] = (error, rpc, signal) => {
    if (error instanceof RequestError) return refused(error);
    if (error instanceof ConnectError && error.rawMessage.startsWith(unparsed))
      return refused(unreadable(error.rawMessage));
    if (error instanceof ConnectError && !hidden.has(error.code)) return withReason(error);
    if (isAbort(error) && signal?.aborted && !isAbort(signal.reason)) return toConnectError(signal.reason, rpc);
    if (isAbort(error)) return aborted(error);
    if (signal?.aborted && isCut(error)) return clientLeft();
    const requestId = newId();
    log.error("rpc failed", { rpc, requestId, error });
    return new ConnectError(`internal error, request id ${requestId}`, Code.Internal);
  };

  return {
    toConnectError,
    interceptor: (next) => async (request) => {
      const translate = (error: unknown) =>
        toConnectError(error, `${request.service.typeName}/${request.method.name}`, request.signal);
      try {
        const response = await next(request);
        if (!response.stream) return response;
        // What a generator throws never passes next().
        return { ...response, message: translated(response.message, translate) };
      } catch (error) {
        throw translate(error);
      }
    },
  };
}

/** The answer of the health service for a service that is not here; its own contract knows no reasons. */
export function unknownService(name: string): ConnectError {
  return new ConnectError(`service ${name} is not served here; List names those that are`, Code.NotFound);
}

/** Why the work for a client that does not wait for its answer is aborted. */
export function clientLeft(): ConnectError {
  return new ConnectError("the client left before it was answered", Code.Canceled);
}

/** Why the work for a client is aborted that did not want to wait for longer. */
export function deadlinePassed(): ConnectError {
  return new ConnectError("the deadline has passed", Code.DeadlineExceeded);
}

/** The refusal of a body that is over the limit. */
export function requestTooLarge(maxBytes: number): ConnectError {
  return new ConnectError(
    `the request is over the limit of ${maxBytes} bytes (limits.request_bytes of GetServerInfo); send less`,
    Code.ResourceExhausted,
  );
}

/** The refusal of a body that is not the one message that its rpc takes. */
export function notOneMessage(fact: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, `the request is to be one message, but ${fact}`);
}

/** The refusal of a message that breaks rules of the contract. */
export function invalidMessage({ message }: Error, violations: Violation[]): ConnectError {
  const [value, desc] = violationsToProto(violations);
  return new ConnectError(message, Code.InvalidArgument, undefined, [{ desc, value }]);
}

/** The refusal of bytes that are not the message that their rpc takes. */
export function unreadable(cause: unknown): RequestError {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestError(ErrorReason.INVALID_MESSAGE, `the request cannot be read: ${fact}`);
}

/** How Connect's router begins what it says of bytes that are no message; to it that is an error of the server. */
const unparsed = "parse binary: ";

/** Codes that would show a client what only the operator may see. */
const hidden: ReadonlySet<Code> = new Set([Code.Internal, Code.Unknown]);

/** Pinned by the comments of the contract. */
const codes: Readonly<Record<keyof typeof ErrorReason, Code>> = {
  UNSPECIFIED: Code.Internal,
  INVALID_MESSAGE: Code.InvalidArgument,
  INVALID_INPUT: Code.InvalidArgument,
  UNKNOWN_TOOL: Code.NotFound,
  UNKNOWN_AGENT: Code.InvalidArgument,
  UNKNOWN_WORKSPACE: Code.InvalidArgument,
  NO_SUCH_SESSION: Code.NotFound,
  NO_SUCH_CALL: Code.NotFound,
  NO_SUCH_PERMISSION: Code.NotFound,
  NO_SUCH_GRANT: Code.NotFound,
  NO_SUCH_OUTPUT: Code.NotFound,
  CALL_ID_REUSED: Code.AlreadyExists,
  SESSION_DIFFERS: Code.AlreadyExists,
  SESSION_CLOSED: Code.FailedPrecondition,
  CALL_EXPIRED: Code.FailedPrecondition,
  ALREADY_ANSWERED: Code.FailedPrecondition,
  ASK_CLOSED: Code.FailedPrecondition,
  ASK_CHANGED: Code.FailedPrecondition,
  NO_OFFER: Code.FailedPrecondition,
  REPLY_ID_REUSED: Code.InvalidArgument,
  UNAUTHENTICATED: Code.Unauthenticated,
  ROLE_MISSING: Code.PermissionDenied,
  OWN_CALL: Code.PermissionDenied,
  QUOTA_EXCEEDED: Code.ResourceExhausted,
  HISTORY_TRIMMED: Code.OutOfRange,
  STORE_CHANGED: Code.DataLoss,
  STORE_UNAVAILABLE: Code.Unavailable,
  DRAINING: Code.Unavailable,
  INVALID_RANGE: Code.OutOfRange,
  HOST_REFUSED: Code.PermissionDenied,
  HOOK_FAILED: Code.FailedPrecondition,
  NOT_EDITABLE: Code.FailedPrecondition,
};

function refused(error: RequestError): ConnectError {
  const reason = nameOf(error.reason);
  // What a message quotes of a request may be no text that can be sent.
  const message = error.message.toWellFormed();
  const refusal = new ConnectError(message, codes[reason], undefined, [errorInfo(reason, error.metadata)], error);
  if (error.settled !== undefined) refusal.details.push({ desc: PermissionSettledSchema, value: error.settled });
  if (reason === "QUOTA_EXCEEDED")
    refusal.details.push({ desc: RetryInfoSchema, value: { retryDelay: { seconds: 1n } } });
  return refusal;
}

/** What the validation interceptor found gets our reason; its own details stay. */
function withReason(error: ConnectError): ConnectError {
  const [violation] = error.findDetails(ViolationsSchema).flatMap(({ violations }) => violations);
  if (violation === undefined) return error;
  const field = (violation.field?.elements ?? []).map(({ fieldName }) => fieldName).join(".");
  error.details.unshift(errorInfo("INVALID_MESSAGE", field === "" ? {} : { field }));
  return error;
}

function errorInfo(reason: string, metadata: Readonly<Record<string, string>>) {
  return { desc: ErrorInfoSchema, value: { reason, domain: "opencode.tool.v1", metadata } };
}

/** What `errorInfo` made known of an error; unspecified if it has no reason. */
export function reasonOf(error: ConnectError) {
  const [{ reason = "", metadata = {} } = {}] = error.findDetails(ErrorInfoSchema);
  return { reason: isReason(reason) ? ErrorReason[reason] : ErrorReason.UNSPECIFIED, metadata };
}

function nameOf(reason: ErrorReason): keyof typeof ErrorReason {
  for (const [name, value] of Object.entries(ErrorReason)) if (value === reason && isReason(name)) return name;
  return "UNSPECIFIED";
}

const isReason = (name: string): name is keyof typeof ErrorReason => name in ErrorReason;

function isAbort(error: unknown): error is Error {
  return error instanceof Error && (error.name === "AbortError" || error.name === "TimeoutError");
}

/** Whether it is how node says that a client broke off its request. */
function isCut(error: unknown): boolean {
  return error instanceof Error && "code" in error && cuts.has(error.code);
}

const cuts: ReadonlySet<unknown> = new Set(["ECONNRESET", "ERR_STREAM_PREMATURE_CLOSE"]);

function aborted(error: Error): ConnectError {
  if (error.name === "TimeoutError") return deadlinePassed();
  return new ConnectError("the request was cancelled", Code.Canceled);
}

async function* translated<T>(messages: AsyncIterable<T>, translate: (error: unknown) => ConnectError) {
  try {
    yield* messages;
  } catch (error) {
    throw translate(error);
  }
}
