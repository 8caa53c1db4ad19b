import { isUtf8 } from "node:buffer";

const maxLineLength = 2_000;
const maxBytes = 51_200;
const pageBytes = 8_192;
/** Bytes of `maxLineLength` characters and one more in the longest encoding, and of a last one that may be incomplete. */
const maxLineBytes = (maxLineLength + 2) * 4;
const newline = 10;
const carriageReturn = 13;
const [colon, space, zero] = [58, 32, 48];

/** A range of lines of a text. */
export interface LineWindow {
  /** Numbered lines: `N: line\n` each. */
  text: string;
  /** Count of shown lines. */
  shown: number;
  /** Count of all lines, or of those before the reading stopped. */
  total: number;
  /** True if the window ended early because it grew too large. */
  capped: boolean;
  /** True if a shown line was not UTF-8 and was read as Latin-1. */
  isLatin1: boolean;
}

/** Collects lines `offset` (1-based) to `offset + limit - 1` of a text that arrives in chunks; it stores no more than it shows. */
export function createLineWindow(offset: number, limit: number) {
  let text = "";
  /** Bytes of `text`; then those used of `page`, which follows it. */
  let bytes = 0;
  let used = 0;
  /** Small, since large buffers are allocated from the system each time. */
  const page = Buffer.allocUnsafe(pageBytes + maxLineBytes + 100);
  let shown = 0;
  let total = 0;
  let capped = false;
  let isLatin1 = false;
  /** Pieces of the line whose end has not arrived yet. */
  let pieces: Buffer[] = [];
  let lineBytes = 0;

  const isWanted = () => !capped && total + 1 >= offset && total + 1 < offset + limit;

  function extend(piece: Buffer): void {
    if (isWanted() && lineBytes < maxLineBytes) pieces.push(piece.subarray(0, maxLineBytes - lineBytes));
    lineBytes += piece.length;
  }

  function endLine(): void {
    if (isWanted()) {
      const line = decode(Buffer.concat(pieces));
      const numbered = `${total + 1}: ${truncate(total === 0 ? withoutMark(line) : line)}\n`;
      showTo(used + page.write(numbered, used));
    }
    total += 1;
    pieces = [];
    lineBytes = 0;
  }

  /**
   * Copies wanted lines of whole UTF-8 lines byte by byte, since decoding each line would take longer. Returns the offset where
   * it stopped: before a line that may have to be truncated.
   */
  function copyLines(lines: Buffer, from: number): number {
    let start = from;
    while (start < lines.length && isWanted()) {
      const first = putNumber(page, total + 1, used);
      const length = copyLine(lines, start, page, first);
      if (length === undefined) break;
      let end = first + length;
      if (length > 0 && page[end - 1] === carriageReturn) end -= 1;
      page[end] = newline;
      showTo(end + 1);
      total += 1;
      start += length + 1;
    }
    return start;
  }

  /** Counts the line up to `end` as shown, if it fits. */
  function showTo(end: number): void {
    capped = bytes + end > maxBytes;
    if (capped) return;
    used = end;
    shown += 1;
    if (used >= pageBytes) turnPage();
  }

  function turnPage(): void {
    text += page.toString("utf8", 0, used);
    bytes += used;
    used = 0;
  }

  function decode(line: Buffer): string {
    const whole = line.length < maxLineBytes ? line : withoutBrokenEnd(line);
    const isText = isUtf8(whole);
    isLatin1 ||= !isText;
    return whole.toString(isText ? "utf8" : "latin1");
  }

  return {
    add(chunk: Buffer): void {
      const whole = chunk.subarray(0, chunk.lastIndexOf(newline) + 1);
      // True for nearly all files: their lines need not be decoded one by one.
      const isText = isUtf8(whole);
      let start = 0;
      while (start < whole.length) {
        // The first line may start with a byte order mark.
        if (isText && lineBytes === 0 && total > 0) start = copyLines(whole, start);
        const end = whole.indexOf(newline, start);
        if (end === -1) break;
        extend(chunk.subarray(start, end));
        endLine();
        start = end + 1;
      }
      if (start < chunk.length) extend(chunk.subarray(start));
    },
    /** Reports whether no later line can be shown. */
    isFull: () => capped || total + 1 >= offset + limit,
    /** Returns the window; call it once, after the last chunk. */
    end(): LineWindow {
      if (lineBytes > 0) endLine();
      turnPage();
      return { text, shown, total, capped, isLatin1 };
    },
  };
}

/** Writes `N: ` and returns its end. */
function putNumber(text: Buffer, number: number, start: number): number {
  let end = start + 1;
  for (let rest = number; rest >= 10; rest = (rest / 10) | 0) end += 1;
  for (let rest = number, at = end - 1; at >= start; at -= 1) {
    const tens = (rest / 10) | 0;
    text[at] = zero + rest - 10 * tens;
    rest = tens;
  }
  text[end] = colon;
  text[end + 1] = space;
  return end + 2;
}

/** Copies a line without its end, and returns its length; undefined if it has more than `maxLineLength` bytes. */
function copyLine(lines: Buffer, start: number, text: Buffer, to: number): number | undefined {
  for (let length = 0; length <= maxLineLength; length += 1) {
    const byte = lines[start + length] ?? newline;
    if (byte === newline) return length;
    text[to + length] = byte;
  }
  return undefined;
}

/** Removes an incomplete character at the end. */
function withoutBrokenEnd(line: Buffer): Buffer {
  let end = line.length;
  while (end > line.length - 3 && ((line[end - 1] ?? 0) & 0xc0) === 0x80) end -= 1;
  return line.subarray(0, end - 1);
}

const withoutMark = (text: string) => (text.startsWith("\uFEFF") ? text.slice(1) : text);

function truncate(line: string): string {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  if (text.length <= maxLineLength) return text;
  const characters = Array.from(text);
  if (characters.length <= maxLineLength) return text;
  return `${characters.slice(0, maxLineLength).join("")}... (line truncated to ${maxLineLength} chars)`;
}
