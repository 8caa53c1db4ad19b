import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";

/** A refused request, with a reason of the contract. Only `edge/rpc/errors.ts` converts it to a status. */
export class RequestError extends Error {
  override name = "RequestError";
  readonly reason: ErrorReason;
  readonly metadata: Readonly<Record<string, string>>;
  /** The settlement of the ask, if the answer came too late. */
  readonly settled: PermissionSettled | undefined;
  constructor(
    reason: ErrorReason,
    message: string,
    metadata: Readonly<Record<string, string>> = {},
    options?: { settled?: PermissionSettled; cause?: unknown },
  ) {
    super(message, options);
    this.reason = reason;
    this.metadata = metadata;
    this.settled = options?.settled;
  }
}

/** True for the failure of a step that may be taken again, since the store was away. */
export function isStoreUnavailable(error: unknown): error is RequestError {
  return error instanceof RequestError && error.reason === ErrorReason.STORE_UNAVAILABLE;
}

/** Reports the loss of a call that the store had accepted. */
export function lostCall({ sessionId, callId }: { sessionId: string; callId: string }, storeId: string): RequestError {
  return new RequestError(
    ErrorReason.STORE_CHANGED,
    `call ${callId} of session ${sessionId} is gone: the store has lost what it had acknowledged, such as in a failover. The outcome of the call is unknown: check its effects before you run it again as a new call`,
    { store_id: storeId, session_id: sessionId, call_id: callId },
  );
}

/** Refuses an unknown session. A session of another principal gets the same error, so that its existence stays hidden. */
export function noSuchSession(sessionId: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_SESSION,
    `session ${sessionId} is not known; create it with CreateSession`,
    {
      session_id: sessionId,
    },
  );
}
