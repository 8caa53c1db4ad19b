import type { JsonObject } from "@bufbuild/protobuf";
import type { PermissionReply, PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { replyTimeoutMs, retryReply } from "../../view/reply.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** An approver's answer to all asks of a call. */
export type AnswerOutcome =
  | { reply: typeof PermissionReply.ONCE; input?: JsonObject }
  | { reply: typeof PermissionReply.ALWAYS; offerId: string }
  | { reply: typeof PermissionReply.REJECT; message: string };

/**
 * Answers all open asks of a call in one step; once it resolves, this answer counts. The digest binds the answer to what was
 * shown.
 */
export async function sendAnswer(
  { permissions }: Pick<ConsoleConnection, "permissions">,
  { sessionId, id, digest }: PermissionRequest,
  answer: AnswerOutcome,
): Promise<void> {
  const response = {
    ...answer,
    sessionId,
    permissionId: id,
    expectedDigest: digest,
    replyId: [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join(""),
    wholeCall: true,
  };
  await retryReply(() => permissions.respondToPermission(response, { timeoutMs: replyTimeoutMs }));
}
