import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { type ServerConnection, serverWords } from "../connection/connection.ts";
import { isSettledElsewhere, type ReplyAnswer, sendReply } from "../connection/send-reply.ts";
import { commandFailure } from "../failure/failure.ts";
import type { Screen } from "../terminal/screen.ts";
import { askLines } from "../view/ask-view.ts";
import { isApproval, settledWords } from "../view/settled.ts";
import { commandLine, durationOf } from "../view/words.ts";

/** Who answers here, and how; whoever is first, here or elsewhere, wins. */
export interface Answering {
  approver: ServerConnection;
  /** The answer to an ask that is on the screen; undefined leaves the ask open. The signal says that it was settled elsewhere. */
  decide(ask: PermissionRequest, signal: AbortSignal): Promise<ReplyAnswer | undefined>;
}

/** The asks that a command sees opened and settled. */
export interface Asking {
  opened(ask: PermissionRequest): void;
  /** Resolves when the ask is off the screen and it is said how it ended. */
  settled(settled: PermissionSettled): Promise<void>;
  /** Takes back what is still asked, and waits until that is done. */
  close(): Promise<void>;
}

/** Shows asks one after the other, and has them answered here if anybody can; else it says where. */
export function createAskPrompt({
  screen,
  server,
  answering,
}: {
  screen: Screen;
  server: ServerConnection;
  answering?: Answering;
}): Asking {
  const open = new Map<string, { taken: AbortController; shown?: Promise<void> }>();
  let queue = Promise.resolve();

  async function present(ask: PermissionRequest, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    screen.status(undefined);
    for (const line of askLines(ask, screen.paint.err, { now: Date.now() })) screen.alert(line);
    if (await answerHere(ask, signal)) return;
    if (signal.aborted) return;
    screen.alert(`  ${screen.paint.err("dim", "answer")}   ${replyCommand(ask, server.url)}`);
    screen.status(() => `◌ waiting for an answer, ${durationOf(ask.expires - Date.now())} left`);
  }

  async function answerHere(ask: PermissionRequest, signal: AbortSignal): Promise<boolean> {
    const answer = await answering?.decide(ask, signal);
    if (!answering || !answer) return false;
    try {
      await sendReply(answering.approver.permissions, ask, answer);
      return true;
    } catch (error) {
      if (isSettledElsewhere(error)) return true;
      screen.fail(commandFailure(error, answering.approver));
      // Arguments that were edited may not fit: the ask is still open, and the person still there.
      return answer.input !== undefined && (await answerHere(ask, signal));
    }
  }

  return {
    opened(ask) {
      const entry: { taken: AbortController; shown?: Promise<void> } = { taken: new AbortController() };
      open.set(ask.id, entry);
      queue = queue.then(() => {
        entry.shown = present(ask, entry.taken.signal).catch((error) => screen.fail(commandFailure(error, server)));
        return entry.shown;
      });
    },
    async settled(settled) {
      const entry = open.get(settled.permissionId);
      open.delete(settled.permissionId);
      entry?.taken.abort();
      // An ask whose turn has not come is not waited for: what is shown now may only end by an event after this one.
      await entry?.shown;
      const [mark, colour] = isApproval(settled.outcome) ? (["✓", "green"] as const) : (["✗", "red"] as const);
      screen.status(undefined);
      screen.note(`  ${screen.paint.err(colour, `${mark} ${settledWords(settled)}`)}`);
    },
    async close() {
      for (const { taken } of open.values()) taken.abort();
      await queue;
    },
  };
}

/** The command that answers an ask from another terminal. */
export function replyCommand({ id, sessionId }: PermissionRequest, url: string): string {
  return `${commandLine("toolgate", "reply", id, "once", "--session", sessionId, ...serverWords(url))}   (or always, or reject -m "why")`;
}
