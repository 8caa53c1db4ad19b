import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isQuestion } from "./check-answers.ts";

/** Returns the reason and the text for the model with which a call ends whose permission request was not approved. */
export function refusalText(
  request: PermissionRequest,
  outcome: PermissionOutcome | undefined,
  message = "",
): [ToolErrorReason, string] {
  if (isQuestion(request)) return questionRefusal(outcome, message);
  const what = `${request.permission} ${request.patterns.map((pattern) => JSON.stringify(pattern)).join(", ")}`;
  if (outcome === PermissionOutcome.EXPIRED) {
    return [
      ToolErrorReason.EXPIRED,
      `Nobody answered the permission request for ${what} in time, so the call was not run. Go on without it, or ask the user.`,
    ];
  }
  if (outcome === PermissionOutcome.DENIED) {
    return [
      ToolErrorReason.DENIED,
      `${what} is not allowed: it needs an approver, and the service runs without one. Do not try it again; go on without it.`,
    ];
  }
  const advice =
    message === "" ? "Do not try it again; go on without it, or ask the user." : `Their advice: ${message}`;
  return [ToolErrorReason.REJECTED, `The user rejected this call (${what}). ${advice}`];
}

function questionRefusal(outcome: PermissionOutcome | undefined, message: string): [ToolErrorReason, string] {
  if (outcome === PermissionOutcome.EXPIRED) {
    return [ToolErrorReason.EXPIRED, "Nobody answered the question in time. Go on without an answer."];
  }
  if (outcome === PermissionOutcome.DENIED) {
    return [
      ToolErrorReason.DENIED,
      "The question was not asked: it needs a person, and the service runs without one. Go on without an answer.",
    ];
  }
  const dismissed = "The user dismissed this question";
  return [ToolErrorReason.REJECTED, message === "" ? dismissed : `${dismissed}. Their feedback: ${message}`];
}

/** Returns the message of the call's other asks, which are withdrawn with the refused one. */
export function withdrawalText({ permission }: PermissionRequest, outcome: PermissionOutcome): string {
  return `${permission} was ${outcome === PermissionOutcome.EXPIRED ? "not answered in time" : "rejected"}`;
}
