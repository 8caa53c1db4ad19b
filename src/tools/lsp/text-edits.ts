import type { Position, TextEdit } from "vscode-languageserver-protocol";
import { ToolFailure } from "../../tool/errors.ts";

/** Applies the edits of a server to a text. Throws `ToolFailure` for edits that overlap or lie outside of the text. */
export function applyTextEdits(path: string, text: string, edits: readonly TextEdit[]): string {
  const offsets = lineOffsets(text);
  const places = edits
    .map(({ range, newText }) => ({
      start: offsetOf(path, text, offsets, range.start),
      end: offsetOf(path, text, offsets, range.end),
      newText,
    }))
    // Stable: of insertions at one place the first one comes first.
    .toSorted((one, other) => one.start - other.start);
  const parts: string[] = [];
  let done = 0;
  for (const { start, end, newText } of places) {
    if (start < done || end < start) throw unusable(path, "its edits overlap");
    parts.push(text.slice(done, start), newText);
    done = end;
  }
  return parts.join("") + text.slice(done);
}

/** Returns the offset of each line. */
function lineOffsets(text: string): number[] {
  return [0, ...[...text.matchAll(/\r\n|\n|\r/g)].map(({ index, 0: end }) => index + end.length)];
}

/** Returns the offset of a position; a column behind the end of its line is that end. */
function offsetOf(path: string, text: string, offsets: readonly number[], { line, character }: Position): number {
  // A range may end at the beginning of the line after the last one.
  if (line === offsets.length && character === 0) return text.length;
  const start = offsets[line];
  if (start === undefined || line < 0 || character < 0) throw unusable(path, `it has no line ${line + 1}`);
  const next = offsets[line + 1];
  const end = next === undefined ? text.length : start + text.slice(start, next).replace(/(\r\n|\n|\r)$/, "").length;
  return Math.min(start + character, end);
}

const unusable = (path: string, why: string) =>
  new ToolFailure(`The edit of the language server does not fit ${path}: ${why}. Nothing was changed; try again.`, {
    hadNoEffects: true,
  });
