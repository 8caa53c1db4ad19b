import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { shownWhole } from "./message.ts";
import { mayApproveAt, type NotifyRule } from "./routing.ts";

/** A request to which an answer at a channel belongs. */
interface AnsweredRequest {
  readonly request: PermissionRequest;
  readonly workspace: string;
}

/** Returns the principal that gives the answer of a person at a channel; refuses what may not be answered there. */
export type ChannelAnswerCheck = (
  /** The program that received the answer. */
  through: Principal,
  method: AnswerMethod,
  response: PermissionResponse,
) => Promise<Principal>;

/**
 * Creates the check of answers that people give at a channel, where it or a program vouches for them. They reject, or approve once what
 * its message showed whole, where a rule lets the channel approve. A person answers there what they may answer themselves, and the
 * principal descends from both, so that it answers no call of either.
 */
export function createChannelAnswerCheck({
  rules,
  find,
  answererOf,
}: {
  rules: readonly NotifyRule[];
  /** Reads a request of a session. */
  find: (ids: Pick<PermissionResponse, "sessionId" | "permissionId">) => Promise<AnsweredRequest>;
  /** Returns a person with a sign-in that may answer now. */
  answererOf: (personId: string) => { person: Person; lineage: Principal["lineage"] } | undefined;
}): ChannelAnswerCheck {
  return async (through, method, response) => {
    const { onBehalfOf, channel } = response;
    if (onBehalfOf === "")
      throw invalid("on_behalf_of", "names no person: send the id of who answered, and the channel");
    const found = answererOf(onBehalfOf);
    if (found === undefined) throw noSuchAnswerer(onBehalfOf);
    if (response.reply !== PermissionReply.REJECT) checkApproval(rules, response, await find(response));
    return {
      ...through,
      roles: new Set(["approver"]),
      lineage: [...through.lineage, ...found.lineage],
      identity: { person: found.person, method, channel },
    };
  };
}

/** Returns the principal of an answer: its sender, or for a relay the person whom it names. */
export function answererOf(
  check: ChannelAnswerCheck,
  sender: Principal,
  response: PermissionResponse,
): Promise<Principal> | Principal {
  if (sender.roles.has("relay")) return check(sender, AnswerMethod.RELAY, response);
  if (response.onBehalfOf === "") return sender;
  throw invalid("on_behalf_of", `is only for a token with the role relay, and "${sender.id}" answers for itself`);
}

/** Refuses an approval that is more than once, that names no digest, or of what the channel did not show whole. */
function checkApproval(
  rules: readonly NotifyRule[],
  { reply, input, wholeCall, expectedDigest, channel, permissionId }: PermissionResponse,
  { request, workspace }: AnsweredRequest,
): void {
  if (reply !== PermissionReply.ONCE) throw invalid("reply", "saves a grant: answer once, or reject");
  if (input) throw invalid("input", "is an edit, which is not made at a channel: answer without it");
  if (wholeCall) throw invalid("whole_call", "approves requests that were not shown: answer each one");
  if (expectedDigest === "")
    throw invalid("expected_digest", "is missing: send the digest of the message that was shown");
  if (!mayApproveAt(channel, rules, request, workspace))
    throw new RequestError(
      ErrorReason.METHOD_TOO_WEAK,
      `no [[notify]] entry with \`approve = true\` sends permission request ${permissionId} to the channel "${channel}", so it may only be rejected there; open the request to approve it`,
      { permission_id: permissionId, channel },
    );
  if (shownWhole(request) === undefined) throw notShown({ permissionId, channel });
}

/** The message of the channel did not show the whole request. */
export function notShown({
  permissionId,
  channel,
}: Pick<PermissionResponse, "permissionId" | "channel">): RequestError {
  return new RequestError(
    ErrorReason.NOT_SHOWN,
    `a message does not show all of permission request ${permissionId}, so it may only be rejected at the channel "${channel}"; open the request to approve it`,
    { permission_id: permissionId, channel },
  );
}

function invalid(field: string, why: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, `the answer of a person at a channel: ${field} ${why}`, {
    field,
  });
}

function noSuchAnswerer(personId: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERSON,
    `no person "${personId}" has a sign-in that may answer now; list them with \`toolgate people\`, and sign in again`,
    { person_id: personId },
  );
}
