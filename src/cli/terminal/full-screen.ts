import { emitKeypressEvents } from "node:readline";
import wrapAnsi from "wrap-ansi";
import type { CliProcess } from "../context.ts";
import { isDumbTerminal } from "../environment.ts";
import { createPasteReader, markPastes } from "./typing.ts";

/** A key that was pressed, or a piece of pasted text (then it has no name). */
export interface Key {
  /** Its name, such as `down`, `escape`, `return` or `j`. */
  name: string;
  /** What it writes; empty if nothing. */
  text: string;
  ctrl: boolean;
}

/** The whole terminal, drawn anew at each change. */
export interface FullScreen {
  readonly size: { readonly columns: number; readonly rows: number };
  /** Shows these rows and nothing else; each has to fit (see wrapRows). */
  draw(rows: readonly string[]): void;
  /** Gives the terminal to another program until the body ends. */
  lend<T>(body: () => Promise<T>): Promise<T>;
  close(): void;
}

/** Whether this process has a whole terminal to draw on and to read keys from. */
export function hasFullScreen({ stdin, stdout, env }: CliProcess): boolean {
  return stdin.isTTY === true && stdout.isTTY === true && !isDumbTerminal(env);
}

/** Takes over the terminal; close gives it back as it was. */
export function openFullScreen(on: { key(key: Key): void; resize(): void }): FullScreen {
  const { stdin, stdout } = process;
  let shown = "";
  const isPasted = createPasteReader();

  function press(text: string | undefined, key: { name?: string; ctrl?: boolean }): void {
    const name = isPasted(key) ? "" : (key.name ?? text ?? "");
    on.key({ name, text: text ?? "", ctrl: key.ctrl ?? false });
  }
  function resized(): void {
    shown = "";
    on.resize();
  }
  function take(): void {
    stdin.setRawMode(true).on("keypress", press).resume();
    stdout.write(`\x1b[?1049h\x1b[?25l${markPastes.on}`);
    shown = "";
  }
  function giveBack(): void {
    stdout.write(`${markPastes.off}\x1b[?25h\x1b[?1049l`);
    stdin.pause().off("keypress", press).setRawMode(false);
  }

  emitKeypressEvents(stdin);
  stdout.on("resize", resized);
  process.once("exit", giveBack);
  take();
  return {
    get size() {
      return { columns: stdout.columns || 80, rows: stdout.rows || 24 };
    },
    draw(rows) {
      const frame = rows.map((row) => `${row}\x1b[K`).join("\r\n");
      if (frame === shown) return;
      shown = frame;
      stdout.write(`\x1b[H${frame}\x1b[J`);
    },
    async lend(body) {
      giveBack();
      try {
        return await body();
      } finally {
        take();
      }
    },
    close() {
      giveBack();
      stdout.off("resize", resized);
      process.off("exit", giveBack);
    },
  };
}

/** A line as rows of a terminal: all of it, however long it is. */
export function wrapRows(line: string, columns: number): string[] {
  return wrapAnsi(line.replaceAll("\t", "    "), columns, { hard: true, trim: false }).split("\n");
}

/** A line as one row, with a mark where it goes on. */
export function clipRow(line: string, columns: number): string {
  const [first = "", ...more] = wrapRows(line, columns);
  return more.length === 0 ? first : `${wrapRows(line, columns - 1)[0]}…`;
}
