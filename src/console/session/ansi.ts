import { visibleLines } from "../parts/visible-text.ts";

/** A run of characters with one style. */
export interface Span {
  readonly text: string;
  /** Classes of the style sheet, such as `fg-1 bold`; empty for plain text. */
  readonly look: string;
}

/** A line of output. */
export type AnsiLine = readonly Span[];

/** Splits output, piece by piece, into lines. */
export interface AnsiReader {
  /** Reads a piece and returns the lines that it completes. */
  push(text: string): AnsiLine[];
  /** The incomplete last line. */
  rest(): AnsiLine;
}

/** Longer lines continue in the next one; otherwise one line could fill the page's memory. */
const maxLineLength = 2_000;

/**
 * Interprets colours (SGR) as terminals do, drops sequences that move the cursor, and makes every other control character
 * visible, so that output cannot imitate the page.
 */
export function createAnsiReader(): AnsiReader {
  const style = createStyle();
  let spans: Span[] = [];
  let width = 0;
  let held = "";

  function write(text: string): AnsiLine[] {
    const done: AnsiLine[] = [];
    for (const part of text.match(/[\s\S]{1,2000}/g) ?? []) {
      if (width + part.length > maxLineLength) done.push(endLine());
      spans.push({ text: part, look: style.look() });
      width += part.length;
    }
    return done;
  }

  function endLine(): AnsiLine {
    const line = spans;
    spans = [];
    width = 0;
    return line;
  }

  return {
    push(text) {
      const all = held + text;
      held = unfinished.exec(all)?.[0] ?? "";
      const done: AnsiLine[] = [];
      for (const [token] of all.slice(0, all.length - held.length).matchAll(tokens)) {
        if (token === "\n" || token === "\r\n") done.push(endLine());
        // Progress bars overwrite their line.
        else if (token === "\r") endLine();
        else if (token.startsWith("\x1b[") && token.endsWith("m")) style.take(token.slice(2, -1));
        else if (!token.startsWith("\x1b")) done.push(...write(visibleLines(token)));
      }
      return done;
    },
    rest: () => [...spans],
  };
}

/** The lines of a complete text. */
export function linesOf(text: string): AnsiLine[] {
  const reader = createAnsiReader();
  const lines = reader.push(text);
  const rest = reader.rest();
  return rest.length > 0 ? [...lines, rest] : lines;
}

/** The text of a line without its colours. */
export function plainOf(line: AnsiLine): string {
  return line.map(({ text }) => text).join("");
}

function createStyle() {
  const on = new Set<string>();
  let foreground = "";
  let background = "";

  function one(code: number, rest: number[]): void {
    if (code === 0) {
      on.clear();
      foreground = "";
      background = "";
    } else if (switches.has(code)) on.add(switches.get(code) ?? "");
    else if (code === 22) for (const name of ["bold", "dim"]) on.delete(name);
    else if (code >= 23 && code <= 29) on.delete(switches.get(code - 20) ?? "");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) foreground = `fg-${bright(code - 30)}`;
    else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) background = `bg-${bright(code - 40)}`;
    else if (code === 38) foreground = extended("fg", rest) ?? foreground;
    else if (code === 48) background = extended("bg", rest) ?? background;
    else if (code === 39) foreground = "";
    else if (code === 49) background = "";
  }

  return {
    look: () => [...on, foreground, background].filter((name) => name !== "").join(" "),
    take(codes: string) {
      const rest = codes.split(/[;:]/).map(Number);
      while (rest.length > 0) one(rest.shift() ?? 0, rest);
    },
  };
}

const switches = new Map([
  [1, "bold"],
  [2, "dim"],
  [3, "italic"],
  [4, "underline"],
  [7, "inverse"],
  [9, "struck"],
]);

/** Maps 0–7 to themselves and 60–67, the bright colours, to 8–15. */
const bright = (code: number) => (code >= 60 ? code - 52 : code);

/** Maps a colour of the 256 or of RGB to the nearest of the sixteen in the style sheet, which suit light and dark. */
function extended(kind: "fg" | "bg", rest: number[]): string | undefined {
  const mode = rest.shift();
  if (mode === 5) {
    const index = rest.shift() ?? 0;
    return `${kind}-${index < 16 ? index : nearest(cubeOf(index))}`;
  }
  if (mode !== 2) return undefined;
  const [red = 0, green = 0, blue = 0] = rest.splice(0, 3);
  return `${kind}-${nearest([red, green, blue])}`;
}

function cubeOf(index: number): [number, number, number] {
  if (index >= 232) return [0, 0, 0].map(() => 8 + (index - 232) * 10) as [number, number, number];
  const at = index - 16;
  const level = (value: number) => (value === 0 ? 0 : 55 + value * 40);
  return [level(Math.floor(at / 36)), level(Math.floor(at / 6) % 6), level(at % 6)];
}

function nearest([red, green, blue]: readonly [number, number, number]): number {
  const max = Math.max(red, green, blue);
  const isOn = (value: number) => value > 60 && value > max / 2;
  const colour = (isOn(red) ? 1 : 0) + (isOn(green) ? 2 : 0) + (isOn(blue) ? 4 : 0);
  return colour + (max > 180 ? 8 : 0);
}

const tokens =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /\r?\n|\r|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78cDEHM]|[^\r\n\x1b]+|\x1b/g;
// The start of a sequence that may end in the next piece.
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const unfinished = /(?:\r|\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|\][^\x07\x1b]{0,2048}|[()])?)$/;
