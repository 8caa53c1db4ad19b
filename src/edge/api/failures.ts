import { RetryInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionSettledSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { clientLeft, deadlinePassed, type FailureDetail, RequestFailure, type Status } from "./request-failure.ts";

/** Maps whatever was thrown while a request was served to the failure to report. */
export interface Failures {
  /**
   * Returns the failure of a request. If `signal`, the request's, is aborted, its reason counts for an abort. An error that is
   * not classified is logged once, and its text is not shown to the client.
   */
  failureOf(error: unknown, rpc: string, signal?: AbortSignal): RequestFailure;
}

/**
 * Creates the mapping. `newId` makes the ids by which an operator finds a reported error in the log; `fromLibrary` classifies
 * errors of a door's library.
 */
export function createFailures({
  log,
  newId,
  fromLibrary,
}: {
  log: Logger;
  newId: () => string;
  fromLibrary: (error: unknown) => RequestFailure | undefined;
}): Failures {
  const failureOf: Failures["failureOf"] = (error, rpc, signal) => {
    if (error instanceof RequestFailure) return error;
    if (error instanceof RequestError) return refusal(error);
    const known = fromLibrary(error);
    if (known !== undefined) return known;
    if (isAbort(error) && signal?.aborted && !isAbort(signal.reason)) return failureOf(signal.reason, rpc);
    if (isAbort(error)) return aborted(error);
    // The library of a door aborts a request with its own error when its client leaves.
    if (signal?.aborted && (error === signal.reason || isConnectionLoss(error))) return clientLeft();
    const requestId = newId();
    log.error("rpc failed", { rpc, requestId, error });
    return new RequestFailure("internal", `internal error, request id ${requestId}`);
  };
  return { failureOf };
}

/** Returns the name of a reason without its prefix, as it is sent. */
export function nameOfReason(reason: ErrorReason): ReasonName {
  for (const [name, value] of Object.entries(ErrorReason)) if (value === reason && isReasonName(name)) return name;
  return "UNSPECIFIED";
}

type ReasonName = keyof typeof ErrorReason;

const isReasonName = (name: string): name is ReasonName => Object.hasOwn(ErrorReason, name);

/** Status of each reason, as the contract's comments state it. */
const statuses: Readonly<Record<ReasonName, Status>> = {
  UNSPECIFIED: "internal",
  INVALID_MESSAGE: "invalid_argument",
  INVALID_INPUT: "invalid_argument",
  UNKNOWN_TOOL: "not_found",
  UNKNOWN_AGENT: "invalid_argument",
  UNKNOWN_WORKSPACE: "invalid_argument",
  NO_SUCH_SESSION: "not_found",
  NO_SUCH_CALL: "not_found",
  NO_SUCH_PERMISSION: "not_found",
  NO_SUCH_GRANT: "not_found",
  NO_SUCH_OUTPUT: "not_found",
  CALL_ID_REUSED: "already_exists",
  SESSION_DIFFERS: "already_exists",
  SESSION_CLOSED: "failed_precondition",
  CALL_EXPIRED: "failed_precondition",
  ALREADY_ANSWERED: "failed_precondition",
  ASK_CLOSED: "failed_precondition",
  ASK_CHANGED: "failed_precondition",
  NO_OFFER: "failed_precondition",
  REPLY_ID_REUSED: "invalid_argument",
  UNAUTHENTICATED: "unauthenticated",
  ROLE_MISSING: "permission_denied",
  OWN_CALL: "permission_denied",
  QUOTA_EXCEEDED: "resource_exhausted",
  HISTORY_TRIMMED: "out_of_range",
  STORE_CHANGED: "data_loss",
  STORE_UNAVAILABLE: "unavailable",
  DRAINING: "unavailable",
  INVALID_RANGE: "out_of_range",
  HOST_REFUSED: "permission_denied",
  HOOK_FAILED: "failed_precondition",
  NOT_EDITABLE: "failed_precondition",
  REQUEST_TOO_LARGE: "resource_exhausted",
  OVERLOADED: "resource_exhausted",
  BODY_TIMEOUT: "deadline_exceeded",
  NOT_SERVED: "unimplemented",
  ORIGIN_REFUSED: "permission_denied",
  NO_SUCH_CREDENTIAL: "not_found",
  NO_SUCH_ASSIGNMENT: "not_found",
  ALREADY_BEGUN: "failed_precondition",
  INVALID_ANSWERS: "invalid_argument",
  RUNNER_SILENT: "deadline_exceeded",
  RUNNER_REPLACED: "aborted",
  NO_SUCH_CONNECTOR: "not_found",
  NO_SUCH_SOURCE: "not_found",
  SOURCE_CHANGED: "failed_precondition",
  DEADLINE_PASSED: "deadline_exceeded",
  STORE_DAMAGED: "data_loss",
  BACKUP_UNSUPPORTED: "failed_precondition",
  WORKER_PROTOCOL: "failed_precondition",
  WORKER_SUPERSEDED: "aborted",
  WORKER_SILENT: "deadline_exceeded",
  METHOD_TOO_WEAK: "permission_denied",
  NOT_ELIGIBLE: "permission_denied",
  REASON_MISSING: "invalid_argument",
  NOT_SHOWN: "failed_precondition",
  RECEIPT_REFUSED: "permission_denied",
  NO_SUCH_PERSON: "not_found",
  NO_SUCH_CHANNEL: "not_found",
  POLICY_REFUSED: "invalid_argument",
  STOPPED: "failed_precondition",
  PROVIDER_UNAVAILABLE: "unavailable",
};

function refusal(error: RequestError): RequestFailure {
  const { reason, message, metadata, settled } = error;
  const details: FailureDetail[] = [];
  if (settled !== undefined) details.push({ desc: PermissionSettledSchema, value: settled });
  if (reason === ErrorReason.QUOTA_EXCEEDED)
    details.push({ desc: RetryInfoSchema, value: { retryDelay: { seconds: 1n } } });
  return new RequestFailure(statuses[nameOfReason(reason)], message, { reason, metadata, details, cause: error });
}

function isAbort(error: unknown): error is Error {
  return error instanceof Error && (error.name === "AbortError" || error.name === "TimeoutError");
}

function aborted(error: Error): RequestFailure {
  return error.name === "TimeoutError" ? deadlinePassed() : new RequestFailure("canceled", "the request was cancelled");
}

/** Returns true for the errors with which Node reports that a client broke off its request. */
function isConnectionLoss(error: unknown): boolean {
  return error instanceof Error && "code" in error && connectionLosses.has(error.code);
}

const connectionLosses: ReadonlySet<unknown> = new Set([
  "ECANCELED",
  "ECONNRESET",
  "EPIPE",
  "ERR_STREAM_DESTROYED",
  "ERR_STREAM_PREMATURE_CLOSE",
  "ERR_HTTP2_INVALID_STREAM",
]);
