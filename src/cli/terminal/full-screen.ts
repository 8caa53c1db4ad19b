import { emitKeypressEvents } from "node:readline";
import wrapAnsi from "wrap-ansi";
import type { CliProcess } from "../context.ts";
import { isDumbTerminal } from "../environment.ts";
import { createPasteReader, markPastes } from "./typing.ts";

/** A key that was pressed, or a piece of pasted text (then it has no name). */
export interface Key {
  /** Its name, such as `down`, `escape`, `return` or `j`. */
  name: string;
  /** The text it types; empty if none. */
  text: string;
  ctrl: boolean;
}

/** The whole terminal, redrawn at each change. */
export interface FullScreen {
  readonly size: { readonly columns: number; readonly rows: number };
  /** Shows only these rows; each has to fit (see wrapRows). */
  draw(rows: readonly string[]): void;
  /** Releases the terminal until the body ends. */
  lend<T>(body: () => Promise<T>): Promise<T>;
  close(): void;
}

/** Checks for a terminal to draw on and to read keys from. */
export function hasFullScreen({ stdin, stdout, env }: CliProcess): boolean {
  return stdin.isTTY === true && stdout.isTTY === true && !isDumbTerminal(env);
}

/** Takes over the terminal; close restores it. */
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
  function release(): void {
    stdout.write(`${markPastes.off}\x1b[?25h\x1b[?1049l`);
    stdin.pause().off("keypress", press).setRawMode(false);
  }

  emitKeypressEvents(stdin);
  stdout.on("resize", resized);
  process.once("exit", release);
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
      release();
      try {
        return await body();
      } finally {
        take();
      }
    },
    close() {
      release();
      stdout.off("resize", resized);
      process.off("exit", release);
    },
  };
}

/** Wraps a line to rows of a terminal. */
export function wrapRows(line: string, columns: number): string[] {
  return wrapAnsi(line.replaceAll("\t", "    "), columns, { hard: true, trim: false }).split("\n");
}

/** Clips a line to one row; `…` marks the cut. */
export function clipRow(line: string, columns: number): string {
  const [first = "", ...more] = wrapRows(line, columns);
  return more.length === 0 ? first : `${wrapRows(line, columns - 1)[0]}…`;
}
