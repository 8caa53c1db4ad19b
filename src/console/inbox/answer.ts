import type { JsonObject } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { replyTimeoutMs, retryReply } from "../../view/reply.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** An approver's answer to all asks of a call. */
export type AnswerOutcome =
  | { reply: typeof PermissionReply.ONCE; input?: JsonObject; answers?: { values: string[] }[] }
  | { reply: typeof PermissionReply.ALWAYS; offerId: string; expires: number }
  | { reply: typeof PermissionReply.REJECT; message: string };

/** Returns a new id for an answer. A repeated answer with the same id counts once. */
export function newReplyId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The report of an answer that the service has recorded. */
export function sentWords(answer: AnswerOutcome): string {
  if (answer.reply === PermissionReply.REJECT) return "Sent: rejected";
  if (answer.reply === PermissionReply.ALWAYS) return "Sent: approved always";
  if (answer.answers !== undefined) return "Sent: answered";
  return answer.input === undefined ? "Sent: approved once" : "Sent: edited";
}

/** The report of an answer that failed. */
export function unsentWords(error: unknown): string {
  const { code, rawMessage } = ConnectError.from(error);
  if (code === Code.DeadlineExceeded)
    return "It is not known if this was sent: no response. Try again; it counts once.";
  if (code === Code.Unavailable || code === Code.Unknown) return "Not sent: no connection to the service. Try again.";
  return `Not sent: ${rawMessage}`;
}

/**
 * Answers all open asks of a call in one step; once it resolves, this answer counts. The digest binds the answer to what was
 * shown.
 */
export async function sendAnswer(
  { permissions }: Pick<ConsoleConnection, "permissions">,
  { sessionId, id, digest }: PermissionRequest,
  answer: AnswerOutcome,
  replyId: string,
): Promise<void> {
  const response = {
    ...answer,
    sessionId,
    permissionId: id,
    expectedDigest: digest,
    replyId,
    wholeCall: true,
  };
  await retryReply(() => permissions.respondToPermission(response, { timeoutMs: replyTimeoutMs }));
}
