import { setTimeout as sleep } from "node:timers/promises";
import { ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import { ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isCut } from "../../client/resume-stream.ts";
import { requesterWords } from "../../view/requester.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { createWaitingCalls, type WaitingCall } from "../connection/open-calls.ts";
import type { CliContext } from "../context.ts";
import { clipRow, hasFullScreen, openFullScreen } from "../terminal/full-screen.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { askSummary } from "../view/ask-view.ts";
import { durationOf } from "../view/words.ts";

/** Defines `toolgate top`. */
export function defineTop(command: Command, context: CliContext): void {
  command
    .description(
      "See the calls that run or wait, in all sessions and at all replicas, live, until q; without a terminal, or with --json, once",
    )
    .action((_options: object) =>
      withServer(context, command, "approver", (server, screen) =>
        screen.json || !hasFullScreen(screen.io) ? printOnce(server, screen) : top(server, screen),
      ),
    );
}

async function printOnce(server: ServerConnection, screen: Screen): Promise<undefined> {
  const calls = await createWaitingCalls(server).look();
  if (screen.json) for (const { part } of calls) screen.emit(ToolPartSchema, part);
  else for (const row of callRows(calls, screen.paint.out, Date.now())) screen.write(`${row}\n`);
  if (calls.length === 0) screen.note("nothing runs or waits");
}

async function top(server: ServerConnection, screen: Screen): Promise<undefined> {
  const leave = new AbortController();
  const paint = screen.paint.out;
  const open = createWaitingCalls(server);
  let calls = await open.look();
  let trouble = "";

  function redraw(): void {
    const { columns, rows } = terminal.size;
    const running = calls.filter(({ part }) => part.state.case === "running").length;
    const state =
      trouble === "" ? paint("dim", server.url) : paint("red", `${server.url}  not live: ${terminalLine(trouble)}`);
    const head = `${paint("bold", "toolgate top")}  ${running} run, ${calls.length - running} wait  ${state}  q quit`;
    const lines = [head, "", ...callRows(calls, paint, Date.now())];
    const shown = lines.length > rows ? [...lines.slice(0, rows - 1), `… ${lines.length - rows + 1} more`] : lines;
    terminal.draw(shown.map((line) => clipRow(line, columns)));
  }

  const terminal = openFullScreen({
    key({ name, ctrl }) {
      if (name === "q" || (ctrl && name === "c")) leave.abort();
    },
    resize: redraw,
  });
  process.once("SIGTERM", () => leave.abort());
  try {
    while (true) {
      redraw();
      await sleep(beatMs, undefined, { signal: leave.signal });
      try {
        calls = await open.look();
        trouble = "";
      } catch (error) {
        if (!(error instanceof ConnectError && isCut(error))) throw error;
        trouble = error.rawMessage;
      }
    }
  } catch (error) {
    if (!leave.signal.aborted) throw error;
  } finally {
    terminal.close();
  }
}

/** A table: those that run first, then those that wait, the longest on top. */
function callRows(calls: readonly WaitingCall[], paint: Paint, now: number): string[] {
  if (calls.length === 0) return [];
  const rows = calls
    .map((call) => ({ call, since: sinceOf(call) }))
    .sort((a, b) => Number(isWaiting(a.call)) - Number(isWaiting(b.call)) || a.since - b.since)
    .map(({ call, since }) => cellsOf(call, since === 0 ? "" : durationOf(now - since), now));
  const head = ["STATE", "TIME", "TOOL", "AGENT", "WHAT", "SESSION", "CALL"];
  const widths = head.map((name, i) => Math.min(50, Math.max(name.length, ...rows.map((row) => row[i]?.length ?? 0))));
  const lineOf = (cells: readonly string[]) =>
    cells
      .map((cell, i) => column(cell, widths[i] ?? 0))
      .join("  ")
      .trimEnd();
  return [paint("dim", lineOf(head)), ...rows.map(lineOf)];
}

function cellsOf({ part, asks, sessionTitle }: WaitingCall, time: string, now: number): string[] {
  const { state, tool, sessionId, callId } = part;
  const [ask] = asks;
  const title = state.case === "running" ? (state.value.title ?? "") : "";
  const left = ask && ask.expires > 0 ? `, ${durationOf(ask.expires - now)} left` : "";
  return [
    ask ? `waits${left}` : (state.case ?? ""),
    time,
    terminalLine(tool),
    requesterWords(part, terminalLine),
    ask ? askSummary(ask) : terminalLine(title),
    terminalLine(sessionTitle === "" ? sessionId : sessionTitle),
    terminalLine(callId),
  ];
}

function isWaiting({ part }: WaitingCall): boolean {
  return part.state.case !== "running";
}

/** Since when it runs, or waits for a person; 0 if it does neither. */
function sinceOf({ part: { state }, asks }: WaitingCall): number {
  return state.case === "running" ? (state.value.time?.start ?? 0) : (asks[0]?.created ?? 0);
}

const column = (cell: string, width: number) => clipRow(cell, width).padEnd(width);
const beatMs = 2_000;
