import type { PermissionSettled, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { type ServerConnection, serverWords } from "../connection/connection.ts";
import { isSettledElsewhere, type ReplyAnswer, sendReply } from "../connection/send-reply.ts";
import { commandFailure } from "../failure/failure.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { askLines } from "../view/ask-view.ts";
import { isApproval, settledWords } from "../view/settled.ts";
import { readFileTexts, shownWith } from "../view/whole-request.ts";
import { commandLine, durationOf } from "../view/words.ts";

/** Approver at this terminal. The first answer wins, here or elsewhere. */
export interface Answering {
  approver: ServerConnection;
  /** Reads the answer to the request on the screen; undefined leaves it open. The signal aborts when it is settled elsewhere. */
  decide(ask: PermissionRequest, signal: AbortSignal): Promise<ReplyAnswer | undefined>;
}

/** Receives the permission requests that a command sees opened and settled. */
export interface Asking {
  opened(ask: PermissionRequest): void;
  /** Resolves when the request is off the screen and its outcome is printed. */
  settled(settled: PermissionSettled): Promise<void>;
  /** Withdraws the prompts that are still open, and waits for that. */
  close(): Promise<void>;
}

/** Shows permission requests one after the other; asks for an answer here, otherwise prints the command that answers. */
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
    const texts = await readFileTexts(answering?.approver ?? server, ask);
    if (signal.aborted) return;
    screen.status(undefined);
    for (const line of askLines(ask, screen.paint.err, { now: Date.now(), texts })) screen.alert(line);
    if (await answerHere(ask, shownWith(ask, texts), signal)) return;
    if (signal.aborted) return;
    screen.alert(`  ${screen.paint.err("dim", "answer")}   ${replyCommand(ask, server.url)}`);
    screen.alert(`  ${screen.paint.err("dim", "open")}     ${requestLink(server.url, ask)}`);
    screen.status(() => `◌ waiting for an answer, ${durationOf(ask.expires - Date.now())} left`);
  }

  async function answerHere(ask: PermissionRequest, shown: Shown, signal: AbortSignal): Promise<boolean> {
    const answer = await answering?.decide(ask, signal);
    if (!answering || !answer) return false;
    try {
      await sendReply(answering.approver.permissions, ask, { shown, ...answer });
      return true;
    } catch (error) {
      if (isSettledElsewhere(error)) return true;
      screen.fail(commandFailure(error, answering.approver));
      // Edited arguments or answers may not fit: the request is still open, so the person can try again.
      const mayFit = answer.input !== undefined || answer.answers !== undefined;
      return mayFit && (await answerHere(ask, shown, signal));
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
      // Do not wait for a request that is queued: the one on the screen may end only by a later event.
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

/** The page of the console that shows a request. */
export function requestLink(url: string, { id }: Pick<PermissionRequest, "id">): string {
  return terminalSafe(`${url}/r/${encodeURIComponent(id)}`);
}

/** The command that answers a request from another terminal. */
export function replyCommand({ id, sessionId, question }: PermissionRequest, url: string): string {
  if (question.length > 0) {
    const answers = question.flatMap(() => ["--answer", "ANSWER"]);
    const command = commandLine("toolgate", "reply", id, ...answers, "--session", sessionId, ...serverWords(url));
    return `${command}   (or reject)`;
  }
  return `${commandLine("toolgate", "reply", id, "once", "--session", sessionId, ...serverWords(url))}   (or always, or reject -m "why")`;
}
