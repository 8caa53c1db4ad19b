import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";

/** A request that is refused, for one of the reasons of the contract. `rpc/errors.ts` alone turns it into a status. */
export class RequestError extends Error {
  override name = "RequestError";
  readonly reason: ErrorReason;
  readonly metadata: Readonly<Record<string, string>>;
  /** How the ask was settled, where an answer came too late. */
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

/** No such session, or not yours: the two are not told apart. */
export function noSuchSession(sessionId: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_SESSION,
    `session ${sessionId} is not known; create it with CreateSession`,
    {
      session_id: sessionId,
    },
  );
}
