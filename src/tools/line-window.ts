import { isUtf8 } from "node:buffer";

const longestLine = 2_000;
const mostBytes = 51_200;
/** What holds `longestLine` characters and one more, in the longest encoding. */
const keptBytes = (longestLine + 1) * 4;

/** A part of a text, by lines. */
export interface LineWindow {
  /** With their numbers: `N: line`. */
  lines: string[];
  /** How many lines there are, or were until the reading stopped. */
  total: number;
  /** Whether the window ended early, because it grew too large. */
  capped: boolean;
  /** Whether a line that is shown is not UTF-8; it was read as Latin-1. */
  isLatin1: boolean;
}

/** Collects lines `offset` (1-based) to `offset + limit - 1` of a text that arrives in chunks; it keeps no more than it shows. */
export function createLineWindow(offset: number, limit: number) {
  const lines: string[] = [];
  let total = 0;
  let bytes = 0;
  let capped = false;
  let isLatin1 = false;
  /** Of the line whose end has not arrived yet. */
  let pieces: Buffer[] = [];
  let kept = 0;

  const isWanted = () => !capped && total + 1 >= offset && total + 1 < offset + limit;

  function extend(piece: Buffer): void {
    if (isWanted() && kept < keptBytes) pieces.push(piece.subarray(0, keptBytes - kept));
    kept += piece.length;
  }

  function endLine(): void {
    if (isWanted()) show(decode(Buffer.concat(pieces)), total + 1, false);
    total += 1;
    pieces = [];
    kept = 0;
  }

  /** Takes lines that are whole and UTF-8, of which the first is wanted. */
  function addLines(text: string, isAscii: boolean): void {
    let start = 0;
    for (let end = text.indexOf("\n"); end !== -1; end = text.indexOf("\n", start)) {
      if (isWanted()) show(text.slice(start, end), total + 1, isAscii);
      total += 1;
      start = end + 1;
    }
  }

  function show(line: string, number: number, isAscii: boolean): void {
    const shown = `${number}: ${cut(number === 1 ? withoutMark(line) : line)}`;
    bytes += (isAscii ? shown.length : Buffer.byteLength(shown)) + 1;
    capped = bytes > mostBytes;
    if (!capped) lines.push(shown);
  }

  function decode(line: Buffer): string {
    const whole = line.length < keptBytes ? line : withoutBrokenEnd(line);
    const isText = isUtf8(whole);
    isLatin1 ||= !isText;
    return whole.toString(isText ? "utf8" : "latin1");
  }

  return {
    add(chunk: Buffer): void {
      // Nearly all are, and then their lines need not be decoded one by one.
      const whole = chunk.subarray(0, chunk.lastIndexOf(10) + 1);
      const isText = isUtf8(whole);
      let start = 0;
      for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
        if (isText && kept === 0 && isWanted()) {
          const text = whole.toString("utf8", start);
          addLines(text, text.length === whole.length - start);
          start = whole.length;
        } else {
          extend(chunk.subarray(start, end));
          endLine();
          start = end + 1;
        }
      }
      if (start < chunk.length) extend(chunk.subarray(start));
    },
    /** Whether no later line belongs to it. */
    isFull: () => capped || total + 1 >= offset + limit,
    /** Call it once, after the last chunk. */
    end(): LineWindow {
      if (kept > 0) endLine();
      return { lines, total, capped, isLatin1 };
    },
  };
}

/** What is cut off may have left a part of a character. */
function withoutBrokenEnd(line: Buffer): Buffer {
  let end = line.length;
  while (end > line.length - 3 && ((line[end - 1] ?? 0) & 0xc0) === 0x80) end -= 1;
  return line.subarray(0, end - 1);
}

const withoutMark = (text: string) => (text.startsWith("\uFEFF") ? text.slice(1) : text);

function cut(line: string): string {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  if (text.length <= longestLine) return text;
  const characters = Array.from(text);
  if (characters.length <= longestLine) return text;
  return `${characters.slice(0, longestLine).join("")}... (line truncated to ${longestLine} chars)`;
}
