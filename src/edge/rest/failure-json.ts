import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { RequestFailure } from "../api/request-failure.ts";
import { httpStatusOf } from "../rpc/errors.ts";

/** Reasons for which a request cannot be answered any more: opencode knows them as one. */
const goneRequests: ReadonlySet<ErrorReason> = new Set([
  ErrorReason.NO_SUCH_PERMISSION,
  ErrorReason.ALREADY_ANSWERED,
  ErrorReason.ASK_CLOSED,
]);

/** Returns a failure in opencode's form; `request` is the permission request that the path names. */
export function failureJson(failure: RequestFailure, path: string, request: string): { status: number; body: object } {
  const { reason, message, metadata } = failure;
  const data = { message };
  if (goneRequests.has(reason)) return { status: 404, body: goneRequest(failure, path, request) };
  const status = httpStatusOf(failure);
  switch (failure.status) {
    case "not_found":
      return { status: 404, body: { name: "NotFoundError", data } };
    case "unauthenticated":
      return { status: 401, body: { _tag: "UnauthorizedError", message } };
    case "permission_denied":
      return { status: 403, body: { name: "Forbidden", data } };
    case "invalid_argument":
    case "failed_precondition": {
      if (reason === ErrorReason.NOT_SERVED) return { status: 400, body: { name: "BadRequest", data } };
      const field = metadata.field && { field: metadata.field };
      return { status: 400, body: { _tag: "InvalidRequestError", message, ...field } };
    }
    default:
      return { status, body: { name: "UnknownError", data } };
  }
}

function goneRequest({ reason, message }: RequestFailure, path: string, requestID: string): object {
  const kind = path.startsWith("/question/") ? "Question" : "Permission";
  const unknown = `${kind} request not found: ${requestID}`;
  return {
    _tag: `${kind}NotFoundError`,
    requestID,
    message: reason === ErrorReason.NO_SUCH_PERMISSION ? unknown : message,
  };
}
