import type { JsonObject } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { PermissionReply, PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** A person's answer to all that a call asks. */
export type AnswerOutcome =
  | { reply: typeof PermissionReply.ONCE; input?: JsonObject }
  | { reply: typeof PermissionReply.ALWAYS; offerId: string }
  | { reply: typeof PermissionReply.REJECT; message: string };

const attempts = 4;

/**
 * Answers all open asks of a call in one step; once it resolves, this answer counts. It is bound to what was shown. A reply
 * that was lost on the way is sent again: its id makes that safe.
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
  for (let attempt = 1; ; attempt += 1) {
    try {
      await permissions.respondToPermission(response, { timeoutMs: 15_000 });
      return;
    } catch (error) {
      const { code } = ConnectError.from(error);
      if (
        attempt === attempts ||
        !(code === Code.Unavailable || code === Code.DeadlineExceeded || code === Code.Unknown)
      )
        throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * attempt));
    }
  }
}
