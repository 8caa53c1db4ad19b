import type { Tool } from "../tool/tool.ts";

/** What the model sees of an output, and what is said about the whole. */
export interface Bounded {
  text: string;
  truncated: boolean;
  /** Bytes of the whole and of what is left. */
  originalSize: number;
  truncatedSize: number;
  /** `toolgate-output:ID` of the whole, if it is stored. */
  outputPath: string | null;
}

/** Keeps as many bytes of an output as the model may see, of the end or ends that it is to see, and counts the rest. */
export function createWindow({ end, lines, bytes }: Tool["keep"]) {
  // Of both ends each has its half, the first the larger one.
  const first = end === "both" ? { lines: Math.ceil(lines / 2), bytes: Math.ceil(bytes / 2) } : { lines, bytes };
  const last = end === "both" ? { lines: Math.floor(lines / 2), bytes: Math.floor(bytes / 2) } : { lines, bytes };
  // One byte more than is shown tells whether a line ends there.
  const head = createBytes(end === "tail" ? 0 : first.bytes + 1);
  const tail = createBytes(end === "head" ? 0 : last.bytes + 1);
  let size = 0;
  let newlines = 0;
  /** Whether its last line has no end yet. */
  let isOpen = false;

  const isOver = () => size > bytes || newlines > lines;

  function bound(outputPath: string | null): Bounded {
    if (!isOver()) {
      const text = Buffer.concat([head.bytes(), tail.bytes()]).toString();
      return { text, truncated: false, originalSize: size, truncatedSize: size, outputPath };
    }
    const start = end === "tail" ? nothing : firstLines(head.bytes(), first);
    // What both ends hold is shown once.
    const rest = end === "head" ? nothing : lastLines(ending(size - start.length), last);
    const shown = start.length + rest.length;
    const left = linesLeft(start, rest);
    const what = left > 0 ? `${left} ${left === 1 ? "line is" : "lines are"}` : `${size - shown} bytes are`;
    const notice =
      `[${what} left out ${places[end]}. The whole output has ${size} bytes: ` +
      `read it with the read tool, filePath "${outputPath}", offset and limit.]`;
    const parts = [start, notice, rest].map(String).filter((part) => part !== "");
    return { text: parts.join("\n\n"), truncated: true, originalSize: size, truncatedSize: shown, outputPath };
  }

  /** How many lines nothing is shown of. */
  function linesLeft(start: Buffer, rest: Buffer): number {
    const startShown = head.bytes()[start.length] === newline ? newlinesIn(start) + 1 : 0;
    const open = isOpen ? 1 : 0;
    const restShown = rest.length === 0 ? 0 : newlinesIn(rest) + open;
    return newlines + open - startShown - restShown;
  }

  /** The last bytes that are held, at most so many. */
  function ending(limit: number): Buffer {
    const held = tail.bytes();
    const all = size - held.length <= head.length ? Buffer.concat([head.bytes(), held]) : held;
    return all.subarray(Math.max(0, all.length - limit));
  }

  return {
    /** Takes a copy of what it keeps. */
    push(chunk: Uint8Array): void {
      if (chunk.length === 0) return;
      size += chunk.length;
      isOpen = chunk[chunk.length - 1] !== newline;
      for (let at = chunk.indexOf(newline); at !== -1; at = chunk.indexOf(newline, at + 1)) newlines += 1;
      const room = Math.max(0, head.most - head.length);
      if (room > 0) head.push(chunk.subarray(0, room));
      if (tail.most > 0 && room < chunk.length) tail.push(chunk.subarray(room));
    },
    /** Whether it is more than the model may see. */
    isOver,
    /** What the model sees; `outputPath` is where the whole can be read. */
    bound,
    get size() {
      return size;
    },
  };
}

const newline = 10;
const nothing = Buffer.alloc(0);
const places = { head: "below", tail: "above", both: "here" };

/** Holds the last bytes of what is pushed, at most so many, in one buffer. */
function createBytes(most: number) {
  let buffer = nothing;
  let length = 0;
  const kept = () => buffer.subarray(Math.max(0, length - most), length);
  return {
    most,
    push(chunk: Uint8Array): void {
      const added = chunk.subarray(Math.max(0, chunk.length - most));
      if (length + added.length > buffer.length) {
        const held = kept();
        const wanted = Math.max(held.length + added.length, Math.min(2 * buffer.length, 2 * most));
        const room = wanted > buffer.length ? Buffer.allocUnsafe(wanted) : buffer;
        length = held.copy(room);
        buffer = room;
      }
      buffer.set(added, length);
      length += added.length;
    },
    bytes: kept,
    get length() {
      return Math.min(length, most);
    },
  };
}

function newlinesIn(bytes: Buffer): number {
  let count = 0;
  for (let at = bytes.indexOf(newline); at !== -1; at = bytes.indexOf(newline, at + 1)) count += 1;
  return count;
}

interface Limits {
  lines: number;
  bytes: number;
}

/** The first whole lines within the limits; a first line that is longer is cut between characters. */
function firstLines(bytes: Buffer, { lines, bytes: limit }: Limits): Buffer {
  let end = -1;
  for (let line = 0, at = bytes.indexOf(newline); line < lines && at !== -1 && at <= limit; line += 1) {
    end = at;
    at = bytes.indexOf(newline, at + 1);
  }
  return bytes.subarray(0, end === -1 ? characterEnd(bytes, limit) : end);
}

/** The last whole lines within the limits; a last line that is longer is cut between characters. */
function lastLines(bytes: Buffer, { lines, bytes: limit }: Limits): Buffer {
  let start = bytes.length;
  // A newline at the very end belongs to the last line.
  let before = bytes.at(-1) === newline ? bytes.length - 1 : bytes.length;
  for (let line = 0; line < lines; line += 1) {
    const end = before > 0 ? bytes.lastIndexOf(newline, before - 1) : -1;
    if (bytes.length - (end + 1) > limit) break;
    start = end + 1;
    before = end;
    if (end === -1) break;
  }
  return bytes.subarray(start < bytes.length ? start : characterStart(bytes, bytes.length - limit));
}

function characterEnd(bytes: Buffer, at: number): number {
  const start = Math.min(at, bytes.length);
  return start < bytes.length ? characterStart(bytes, start, -1) : start;
}

/** The nearest place, forward or back, at which a UTF-8 character begins. */
function characterStart(bytes: Buffer, at: number, step: 1 | -1 = 1): number {
  let place = Math.max(0, at);
  while (place > 0 && place < bytes.length && ((bytes[place] ?? 0) & 0xc0) === 0x80) place += step;
  return place;
}
