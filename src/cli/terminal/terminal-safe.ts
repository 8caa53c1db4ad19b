import type { JsonValue } from "@bufbuild/protobuf";

/** Handling of colours (SGR): keep, drop, or (default) show like every other control character. */
export interface SafeOptions {
  colours?: "keep" | "drop";
}

/**
 * Escapes untrusted text for a terminal: of all control, bidirectional and invisible characters only line ends and tabs stay,
 * the others are shown as `\x1b` or `\u202e`. Colours that are kept are reset at the end.
 */
export function terminalSafe(text: string, { colours }: SafeOptions = {}): string {
  let coloured = false;
  const safe = text.replace(/\r\n?/g, "\n").replace(hostile, (found) => {
    const isColour = found.startsWith("\x1b[");
    if (!isColour || !colours) return found.replace(hostileCharacter, visible);
    if (colours === "drop") return "";
    coloured = found !== reset;
    return found;
  });
  return coloured ? safe + reset : safe;
}

/** Escapes a stream of bytes piece by piece: a character, colour or line end that a piece cuts in two is buffered. */
export function createSafeDecoder(options: SafeOptions): { push(piece: Uint8Array): string; end(): string } {
  const decoder = new TextDecoder();
  let held = "";
  return {
    push(piece) {
      const text = held + decoder.decode(piece, { stream: true });
      held = unfinished.exec(text)?.[0] ?? "";
      return terminalSafe(text.slice(0, text.length - held.length), options);
    },
    end() {
      const text = held + decoder.decode();
      held = "";
      return terminalSafe(text, options);
    },
  };
}

/** Escapes text, and splits it into its lines. */
export function terminalLines(text: string): string[] {
  return terminalSafe(text).trimEnd().split("\n");
}

/** Escapes text for one line: line ends and tabs become spaces. */
export function terminalLine(text: string): string {
  return terminalSafe(text).replace(/\s+/g, " ").trim();
}

/** Writes a value as JSON that is safe on a terminal and parses to the same value. */
export function jsonSafe(value: JsonValue): string {
  const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value, null, 2).replace(hostileCharacter, (found) => found.split("").map(escaped).join(""));
}

const reset = "\x1b[0m";
const sgr = "\\x1b\\[[0-9;:]{0,64}m";
// C0 without \t and \n, DEL, C1, marks and overrides of direction, invisible characters, line separators, tags.
const single =
  "[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]";
const hostile = new RegExp(`${sgr}|${single}`, "gu");
const hostileCharacter = new RegExp(single, "gu");
// An SGR without its end, or a \r that may be the first half of a line end.
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const unfinished = /(?:\x1b(?:\[[0-9;:]{0,64})?|\r)$/;

function visible(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}
