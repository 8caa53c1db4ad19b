import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { isSettledElsewhere, type ReplyAnswer, sendReply } from "../connection/send-reply.ts";
import type { Screen } from "../terminal/screen.ts";
import { indented } from "./lines.ts";

/** Answers a permission request of the demo; the signal aborts once the request is settled. */
export type DemoAnswers = (ask: PermissionRequest, answer: ReplyAnswer, signal: AbortSignal) => Promise<void>;

/** Gives the answer that the demo's script has for a request. */
export function createAutomaticAnswers({ permissions }: ServerConnection, screen: Screen): DemoAnswers {
  const { out } = screen.paint;
  return async (ask, answer) => {
    const isSent = await sendReply(permissions, ask, answer).then(
      () => true,
      (error: unknown) => {
        if (isSettledElsewhere(error)) return false;
        throw error;
      },
    );
    const words = answer.reply === PermissionReply.REJECT ? `reject, "${answer.message}"` : "once";
    if (isSent && !screen.json) screen.write(`${out("yellow", `   the person answers: ${words}`)}\n`);
  };
}

/** Prints a request as the approver sees it. */
export function showRequest({ preview }: PermissionRequest, { json, paint, write }: Screen): void {
  if (json) return;
  const shown = preview?.diff ? `\n${indented(preview.diff)}` : ` ${preview?.command ?? ""}`;
  write(`${paint.out("yellow", `   the person sees:${shown}`)}\n`);
}
