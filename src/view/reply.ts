import { Code, ConnectError } from "@connectrpc/connect";

/** The deadline of one attempt to send a reply. */
export const replyTimeoutMs = 15_000;

/** The pauses between attempts. */
const pausesMs: readonly number[] = [500, 1_000, 2_000];

/** Errors after which it is unknown whether the service received the reply. */
const uncertain: ReadonlySet<Code> = new Set([Code.Unavailable, Code.DeadlineExceeded, Code.Unknown]);

/** Sends a reply again while it is unknown whether it arrived. The reply has to carry an id, which makes repeating it safe. */
export async function retryReply(
  send: () => Promise<unknown>,
  pause: (ms: number) => Promise<unknown> = (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
): Promise<void> {
  for (const ms of pausesMs) {
    try {
      await send();
      return;
    } catch (error) {
      if (!uncertain.has(ConnectError.from(error).code)) throw error;
      await pause(ms);
    }
  }
  await send();
}
