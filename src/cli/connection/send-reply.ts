import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionReply, PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { replyTimeoutMs, retryReply } from "../../view/reply.ts";
import { errorInfoOf } from "../failure/failure.ts";

/** A person's answer to an ask. */
export interface ReplyAnswer {
  reply: PermissionReply;
  /** For the model; only with reject. */
  message?: string;
  /** What to save; only with always, else the first offer. */
  offerId?: string;
  /** Other arguments for the call; only with once. */
  input?: JsonObject;
  /** Whether it is for all open asks of the call. */
  wholeCall?: boolean;
  /** When what is saved ends, in ms since the epoch; only with always. */
  expires?: number;
}

/** What of an ask an answer names: the digest binds it to what was shown. */
export type AskRef = Pick<PermissionRequest, "sessionId" | "id" | "digest">;

/** Answers an ask; once it returns, this answer is the one that counts. A lost reply is repeated: its id makes that safe. */
export async function sendReply(
  permissions: Client<typeof PermissionService>,
  ask: AskRef,
  answer: ReplyAnswer,
): Promise<void> {
  const response = {
    ...answer,
    sessionId: ask.sessionId,
    permissionId: ask.id,
    expectedDigest: ask.digest,
    replyId: randomUUID(),
  };
  await retryReply(() => permissions.respondToPermission(response, { timeoutMs: replyTimeoutMs }));
}

/** Whether an answer failed because the ask had ended before it: its settlement, which is on its way to watchers, says how. */
export function isSettledElsewhere(error: unknown): boolean {
  return ["ALREADY_ANSWERED", "ASK_CLOSED"].includes(errorInfoOf(error)?.reason ?? "");
}
