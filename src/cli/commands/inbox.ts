import type { Command } from "commander";
import { Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { replyTimeoutMs } from "../../view/reply.ts";
import { isRequestCut } from "../../view/view-lines.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { withoutEnd } from "../connection/resume.ts";
import { isSettledElsewhere, type ReplyAnswer, sendReply } from "../connection/send-reply.ts";
import type { CliContext } from "../context.ts";
import { commandFailure } from "../failure/failure.ts";
import { type Card, createCards, isOpen } from "../inbox/cards.ts";
import { createKeyboard } from "../inbox/keyboard.ts";
import { askChanges, printAsks } from "../inbox/print-asks.ts";
import { createInboxView } from "../inbox/view.ts";
import { editCall } from "../terminal/edit.ts";
import { hasFullScreen, openFullScreen } from "../terminal/full-screen.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { readFileTexts, readWholeRequest, shownWith } from "../view/whole-request.ts";

/** Defines `toolgate inbox`. */
export function defineInbox(command: Command, context: CliContext): void {
  command
    .description(
      "Show open permission requests of all sessions, live, and answer each with one key; without a terminal, or with --json, print requests as they are opened and settled",
    )
    .option("--session <id>", "only those of this session and its descendants")
    .addHelpText("after", inboxHelp)
    .action(({ session = "" }: { session?: string }) =>
      withServer(context, command, "approver", (server, screen) =>
        screen.json || !hasFullScreen(screen.io) ? printAsks(server, screen, session) : inbox(server, screen, session),
      ),
    );
}

/** Shows the inbox on the whole terminal, until the person leaves it. */
async function inbox(server: ServerConnection, screen: Screen, sessionId: string): Promise<void> {
  const leave = new AbortController();
  const clock = () => performance.now();
  const nameOf = createInboxSessionNames(server, redraw);
  const ruleFor = createFetched(
    async (permissionId) => (await server.permissions.suggestRules({ permissionId })).rules[0],
    redraw,
  );
  const ruleOf = ({ id }: PermissionRequest) => ruleFor(id);
  const cards = createCards(clock, nameOf);
  const view = createInboxView(screen.paint.out);
  /** The card whose end was on the screen. */
  let whole: Card | undefined;
  const reading = new WeakSet<PermissionRequest>();
  const state = { notice: "", trouble: "connecting", scroll: 0, page: 1, isLent: false };
  const terminal = openFullScreen({
    key(key) {
      const before = cards.selected();
      state.notice = "";
      keyboard.press(key);
      if (cards.selected() !== before) state.scroll = 0;
      redraw();
    },
    resize: redraw,
  });
  const keyboard = createKeyboard(cards, {
    answer: (asks, answer) =>
      showFailure(
        sendAll(
          server,
          asks.map((ask) => ({ ask, shown: shownOf(ask) })),
          answer,
        ),
      ),
    rejectAll: (scope, message) => showFailure(rejectAll(server, { ...scope, message })),
    edit: (card) => showFailure(editArguments(card)),
    turnPage: (by) => {
      state.scroll += by * state.page;
    },
    showWhole: (card) => showFailure(showWhole(card)),
    isWhole,
    say: (notice) => {
      state.notice = notice;
    },
    leave: () => leave.abort(),
  });

  function isWhole(card: Card): boolean {
    return whole === card && card.asks.every((ask) => card.texts.has(ask) && !isRequestCut(ask));
  }

  function shownOf(ask: PermissionRequest): Shown {
    const texts = cards.selected()?.texts.get(ask);
    return texts ? shownWith(ask, texts) : Shown.UNKNOWN;
  }

  async function showWhole(card: Card): Promise<void> {
    const whole = await Promise.all(card.asks.map((ask) => readWholeRequest(server, ask)));
    await showTexts(card, whole);
  }

  /** Adds requests to a card, with the texts of their files. */
  async function showTexts(card: Card, asks: readonly PermissionRequest[]): Promise<void> {
    const read = asks.map(async (ask) => [ask, await readFileTexts(server, ask)] as const);
    cards.showWhole(card, new Map(await Promise.all(read)));
    redraw();
  }

  /** Reads the texts of the files of the selected card, once. */
  function readTexts(): void {
    const card = cards.selected();
    const asks = card && isOpen(card) ? card.asks.filter((ask) => !card.texts.has(ask) && !reading.has(ask)) : [];
    if (card === undefined || asks.length === 0) return;
    for (const ask of asks) reading.add(ask);
    showFailure(showTexts(card, asks));
  }

  function redraw(): void {
    if (state.isLent || leave.signal.aborted) return;
    cards.sweep();
    cards.shown();
    readTexts();
    const waitMs = cards.inertMs();
    const { notice, trouble, scroll } = state;
    const now = { notice, trouble, scroll, url: server.url, nameOf, ruleOf, now: Date.now() };
    const shown = view(
      {
        ...{ ...now, openCount: cards.all().filter(isOpen).length, rows: cards.rows(), filter: cards.filter() },
        ...{ selected: cards.selected(), mode: keyboard.mode(), isReady: waitMs === 0 },
      },
      terminal.size,
    );
    Object.assign(state, { scroll: shown.scroll, page: shown.page });
    if (shown.isAtEnd) whole = cards.selected();
    terminal.draw(shown.rows);
    if (waitMs > 0 && cards.selected()) setTimeout(redraw, waitMs + 1).unref();
  }

  /** Shows an error; a success arrives as an event of the stream. */
  function showFailure(work: Promise<void>): void {
    work.catch((error) => {
      const { message, next } = commandFailure(error, server);
      state.notice = next === "" ? message : `${message}\nnext: ${next}`;
      redraw();
    });
  }

  async function editArguments({ asks }: Card): Promise<void> {
    state.isLent = true;
    const input = await terminal
      .lend(() => editCall(server, asks[0], screen.io))
      .finally(() => {
        state.isLent = false;
        redraw();
      });
    const [ask] = asks;
    if (input) await sendAll(server, [{ ask, shown: Shown.UNKNOWN }], { reply: PermissionReply.ONCE, input });
  }

  const beat = setInterval(redraw, 1_000);
  process.once("SIGTERM", () => leave.abort());
  try {
    const changes = askChanges(server, {
      sessionId,
      signal: leave.signal,
      pauseMs: withoutEnd,
      onCut: (trouble) => {
        state.trouble = trouble;
        redraw();
      },
    });
    for await (const frame of changes) {
      state.trouble = "";
      cards.apply(frame);
      redraw();
    }
  } catch (error) {
    if (!leave.signal.aborted) throw error;
  } finally {
    clearInterval(beat);
    terminal.close();
  }
}

/** Answers exactly the requests that were shown; those that the call opened since are left open. */
async function sendAll(
  server: ServerConnection,
  asks: readonly { ask: PermissionRequest; shown: Shown }[],
  answer: ReplyAnswer,
): Promise<void> {
  for (const { ask, shown } of asks) {
    try {
      await sendReply(server.permissions, ask, { ...answer, shown });
    } catch (error) {
      if (!isSettledElsewhere(error)) throw error;
    }
  }
}

async function rejectAll(
  server: ServerConnection,
  scope: { sessionId?: string; agent?: string; message: string },
): Promise<void> {
  await server.permissions.rejectPermissions(scope, { timeoutMs: replyTimeoutMs });
}

const inboxHelp = `
Keys:
  j k      next call, previous call             o  allow this call
  space b  page down, page up in a long card    a  allow from now on: choose what
  q        leave; what is open stays open       r  reject, with advice for the agent
  w        load what is shown in part           e  change the arguments in $EDITOR; anything new asks again
  /        show only requests with these words; session:… agent:… tool:… risk:… look in that field
Equal requests share a row (×3); each is allowed for itself. After r, Tab rejects all equal ones, or all of the session or agent.
On a question, o opens its form, in which Enter goes on and Esc back, and r dismisses it.`;

/** Fetches what there is about an id once, and calls `onNews` when it arrives. A card has all that an answer needs without it. */
function createFetched<Value>(fetch: (id: string) => Promise<Value | undefined>, onNews: () => void) {
  const known = new Map<string, Value | undefined>();

  async function learn(id: string): Promise<void> {
    const found = await fetch(id);
    known.set(id, found);
    if (found !== undefined) onNews();
  }

  return (id: string): Value | undefined => {
    if (!known.has(id)) {
      known.set(id, undefined);
      learn(id).catch(() => undefined);
    }
    return known.get(id);
  };
}

/** Names sessions by title and id, and by the id alone until the title is here. */
function createInboxSessionNames({ sessions }: ServerConnection, onNews: () => void): (sessionId: string) => string {
  const titleOf = createFetched(async (sessionId) => (await sessions.getSession({ sessionId })).session?.title, onNews);
  return (sessionId) => {
    const title = titleOf(sessionId);
    return terminalLine(title ? `${title} (${sessionId})` : sessionId);
  };
}
