import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionOutcome, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import type { AskRecord } from "./ports.ts";

/** An answer to an ask that is settled: the same one again is fine, another one is told who won. */
export function settledBefore(
  settled: PermissionSettled,
  principal: Principal,
  { replyId, permissionId }: PermissionResponse,
  answerDigest: string,
): void {
  const isSameId = replyId !== "" && replyId === settled.replyId;
  const isSame = settled.by === principal.id && settled.answerDigest === answerDigest && replyId === settled.replyId;
  if (isSame) return;
  if (isSameId) {
    throw new RequestError(
      ErrorReason.REPLY_ID_REUSED,
      `reply_id ${replyId} was used for another answer to ${permissionId}; send a new one`,
      { permission_id: permissionId, reply_id: replyId },
    );
  }
  const outcome = outcomeName(settled.outcome);
  throw settled.by !== ""
    ? new RequestError(
        ErrorReason.ALREADY_ANSWERED,
        `permission request ${permissionId} was answered "${outcome}" by ${settled.by}`,
        { permission_id: permissionId, by: settled.by },
        { settled },
      )
    : new RequestError(
        ErrorReason.ASK_CLOSED,
        `permission request ${permissionId} is closed: ${outcome}${settled.message === "" ? "" : ` (${settled.message})`}`,
        { permission_id: permissionId, outcome },
        { settled },
      );
}

function outcomeName(outcome: PermissionOutcome): string {
  const name = Object.entries(PermissionOutcome).find(([, value]) => value === outcome)?.[0];
  return (name ?? "unspecified").toLowerCase();
}

/** The session has no ask of that id. */
export function noSuchPermission({ sessionId, permissionId }: PermissionResponse): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERMISSION,
    `session ${sessionId} has no permission request ${permissionId}; ListPermissions shows the open ones`,
    { session_id: sessionId, permission_id: permissionId },
  );
}

/** Who made a call never answers for it. */
export function ownCall({ permissionId }: PermissionResponse, { id }: Principal): RequestError {
  return new RequestError(
    ErrorReason.OWN_CALL,
    `permission request ${permissionId} belongs to a call that ${id} made; somebody else has to answer it`,
    { permission_id: permissionId },
  );
}

/** What was shown is not what is asked. */
export function changedAsk({ id, digest }: PermissionRequest): RequestError {
  return new RequestError(
    ErrorReason.ASK_CHANGED,
    `permission request ${id} is not what was shown: its digest is ${digest}; show it again`,
    { permission_id: id, digest },
  );
}

/** A grant would be dead when it is saved. */
export function pastExpiry(expires: number): RequestError {
  return new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `expires is ${new Date(expires).toISOString()}, which has passed; name a later time, or answer once`,
    { field: "expires" },
  );
}

/** Nothing can be saved, or not that. */
export function noOffer({ id }: PermissionRequest, what: string): RequestError {
  return new RequestError(
    ErrorReason.NO_OFFER,
    `permission request ${id} has ${what}; choose one of its offers, answer once, or reject`,
    { permission_id: id },
  );
}

/** What runs already cannot be given other arguments. */
export function notEditable({ request: { id }, part }: AskRecord): RequestError {
  return new RequestError(
    ErrorReason.NOT_EDITABLE,
    `permission request ${id} comes from the running ${part.tool}, whose arguments are in use; answer once, always or reject`,
    { permission_id: id },
  );
}
