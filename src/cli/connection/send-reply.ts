import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import type { Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionReply, PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { replyTimeoutMs, retryReply } from "../../view/reply.ts";
import { errorInfoOf } from "../failure/failure.ts";

/** A person's answer to a permission request. */
export interface ReplyAnswer {
  reply: PermissionReply;
  /** For the model; only with reject. */
  message?: string;
  /** For people and the audit. */
  reason?: string;
  /** The offer to save; only with always; default: the first one. */
  offerId?: string;
  /** Other arguments for the call; only with once. */
  input?: JsonObject;
  /** Answers to the questions of the request, one for each; only with once. */
  answers?: readonly { values: string[] }[];
  /** Applies the answer to all open requests of the call. */
  wholeCall?: boolean;
  /** End of the grant, in ms since the epoch; only with always. */
  expires?: number;
  /** The number of further calls that the grant covers; only with always. */
  times?: number;
  /** The part of the request that `digest` names which was on the screen. */
  shown?: Shown;
}

/** Identifies the request that is answered; the digest binds the answer to what was shown. */
export type AskRef = Pick<PermissionRequest, "sessionId" | "id" | "digest">;

/** Answers a request; once it returns, this answer has won. A lost reply is repeated: its id makes that safe. */
export async function sendReply(
  permissions: Client<typeof PermissionService>,
  ask: AskRef,
  answer: ReplyAnswer,
): Promise<void> {
  const { answers, ...rest } = answer;
  const response = {
    ...rest,
    ...(answers && { answers: [...answers] }),
    sessionId: ask.sessionId,
    permissionId: ask.id,
    expectedDigest: ask.digest,
    replyId: randomUUID(),
  };
  await retryReply(() => permissions.respondToPermission(response, { timeoutMs: replyTimeoutMs }));
}

/** Checks whether an answer failed because the request was already settled; watchers get that settlement as an event. */
export function isSettledElsewhere(error: unknown): boolean {
  return ["ALREADY_ANSWERED", "ASK_CLOSED"].includes(errorInfoOf(error)?.reason ?? "");
}
