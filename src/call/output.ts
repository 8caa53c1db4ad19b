import { create } from "@bufbuild/protobuf";
import { type ToolOutput, ToolOutputSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { OutputLimit } from "../tool/errors.ts";
import type { Tool } from "../tool/tool.ts";
import type { OutputStore } from "./ports.ts";

/** Output of one call. Bytes are stored first, then emitted to watchers, in order; memory is bounded. */
export type CallOutput = ReturnType<typeof createCallOutput>;

/** Bytes that may wait to be stored before a writer has to wait. */
const maxWaitingBytes = 256 * 1024;
/** Bytes of one output event. Fewer waiting bytes are stored after a delay. */
const pieceBytes = 32 * 1024;
const flushMs = 50;

/** Creates the output of a call. */
export function createCallOutput({
  root,
  callId,
  id,
  store,
  limit,
  keep,
  record,
}: {
  root: string;
  callId: string;
  id: string;
  store: Pick<OutputStore, "append">;
  /** Bytes that may be written. */
  limit: number;
  keep: Tool["keep"];
  /** Emits events whose bytes are stored. Rejects if the call is no longer ours. */
  record(pieces: ToolOutput[]): Promise<void>;
}) {
  const path = `toolgate-output:${id}`;
  const window = createWindow(keep);
  const backlog = createBacklog(2 * maxWaitingBytes);
  let stored = 0;
  let timer: NodeJS.Timeout | undefined;
  let flushing: Promise<void> | undefined;
  let failure: unknown;

  async function flush(): Promise<void> {
    clearTimeout(timer);
    timer = undefined;
    // After a failure the rest would be emitted behind a gap.
    while (backlog.size > 0 && failure === undefined) {
      const data = backlog.take();
      await store.append(root, id, data);
      backlog.release();
      const pieces: ToolOutput[] = [];
      for (let at = 0; at < data.length; at += pieceBytes) {
        const length = Math.min(pieceBytes, data.length - at);
        pieces.push(create(ToolOutputSchema, { callId, offset: BigInt(stored + at), length, output: path }));
      }
      stored += data.length;
      await record(pieces);
    }
  }

  /** Starts a flush unless one is running. The first failure is thrown by the next write or end. */
  function startFlush(): Promise<void> {
    flushing ??= flush()
      .catch((cause: unknown) => {
        failure ??= cause;
      })
      .finally(() => {
        flushing = undefined;
      });
    return flushing;
  }

  function check(): void {
    if (failure !== undefined) throw failure;
  }

  return {
    /**
     * Takes the chunk, which the writer may reuse at once, and resolves when there is capacity for more. Throws `OutputLimit` for
     * what cannot be stored whole.
     */
    async write(chunk: Uint8Array): Promise<void> {
      check();
      if (window.size + chunk.length > limit) {
        throw new OutputLimit(
          `The output is over ${limit} bytes, the limit of a call, and the call was stopped. Write less, or into a file.`,
        );
      }
      window.push(chunk);
      backlog.add(chunk);
      if (backlog.size < pieceBytes) {
        timer ??= setTimeout(() => void startFlush(), flushMs);
        return;
      }
      const flushed = startFlush();
      if (backlog.size < maxWaitingBytes) return;
      await flushed;
      check();
    },
    /** Resolves when everything written is stored and emitted. */
    async end(): Promise<void> {
      while ((backlog.size > 0 && failure === undefined) || flushing) await startFlush();
      check();
    },
    /** Takes bytes that an earlier run has emitted: stores them without an event. Called before the first write. */
    async restore(data: Uint8Array): Promise<void> {
      window.push(data);
      await store.append(root, id, data);
      stored += data.length;
    },
    /** Returns the number of bytes that are stored and emitted. */
    size: (): number => stored,
    /** Returns what the model sees of everything written. */
    written: (): Bounded => window.bound(stored + backlog.size > 0 ? path : null),
    /** Returns what the model sees of a text that the tool returned at once; a text that is cut is stored first. */
    async whole(text: string): Promise<Bounded> {
      const data = Buffer.from(text);
      const all = createWindow(keep);
      all.push(data);
      if (!all.isOver()) return all.bound(null);
      await store.append(root, id, data);
      return all.bound(path);
    },
  };
}

const empty = Buffer.alloc(0);

/**
 * Creates an empty backlog of bytes that wait to be stored. Two buffers take turns, however much is written: one is stored while the
 * other fills. A buffer over `maxRetainedBytes` is dropped after use.
 */
export function createBacklog(maxRetainedBytes: number) {
  let filling = empty;
  let spare = empty;
  let taken = empty;
  let size = 0;
  return {
    /** Bytes that wait. */
    get size() {
      return size;
    },
    /** Copies a chunk to the end. */
    add(chunk: Uint8Array): void {
      const wanted = size + chunk.length;
      if (wanted > filling.length) {
        const larger = Buffer.allocUnsafe(Math.max(wanted, Math.min(2 * filling.length, maxRetainedBytes)));
        filling.copy(larger, 0, 0, size);
        filling = larger;
      }
      filling.set(chunk, size);
      size = wanted;
    },
    /** Takes everything that waits; the bytes are valid until `release`. */
    take(): Buffer {
      const data = filling.subarray(0, size);
      taken = filling;
      filling = spare;
      spare = empty;
      size = 0;
      return data;
    },
    /** Makes the buffer of what was taken last available again. */
    release(): void {
      if (taken.length <= maxRetainedBytes) spare = taken;
      taken = empty;
    },
  };
}

/** The part of an output that the model sees, with the sizes of the whole. */
export interface Bounded {
  text: string;
  truncated: boolean;
  /** Bytes of the whole and of what is shown. */
  originalSize: number;
  truncatedSize: number;
  /** `toolgate-output:ID` of the whole, if it is stored. */
  outputPath: string | null;
}

/** Creates a window over an output: retains the bytes that the model may see, of one end or of both, and counts the rest. */
export function createWindow({ end, lines, bytes }: Tool["keep"]) {
  // Both ends get half each; the first one gets the odd line and byte.
  const first = end === "both" ? { lines: Math.ceil(lines / 2), bytes: Math.ceil(bytes / 2) } : { lines, bytes };
  const last = end === "both" ? { lines: Math.floor(lines / 2), bytes: Math.floor(bytes / 2) } : { lines, bytes };
  // One byte more than is shown: it shows if a line ends there.
  const head = createBytes(end === "tail" ? 0 : first.bytes + 1);
  const tail = createBytes(end === "head" ? 0 : last.bytes + 1);
  let size = 0;
  let newlines = 0;
  /** The last line has no newline yet. */
  let isOpen = false;

  const isOver = () => size > bytes || newlines > lines;

  function bound(outputPath: string | null): Bounded {
    if (!isOver()) {
      const text = Buffer.concat([head.bytes(), tail.bytes()]).toString();
      return { text, truncated: false, originalSize: size, truncatedSize: size, outputPath };
    }
    const start = end === "tail" ? nothing : firstLines(head.bytes(), first);
    // Bytes that both ends hold are shown once.
    const rest = end === "head" ? nothing : lastLines(ending(size - start.length), last);
    const shown = start.length + rest.length;
    const hidden = countHiddenLines(start, rest);
    const what = hidden > 0 ? `${hidden} ${hidden === 1 ? "line is" : "lines are"}` : `${size - shown} bytes are`;
    const notice =
      `[${what} left out ${places[end]}. The whole output has ${size} bytes: ` +
      `read it with the read tool, filePath "${outputPath}", offset and limit.]`;
    const parts = [start, notice, rest].map(String).filter((part) => part !== "");
    return { text: parts.join("\n\n"), truncated: true, originalSize: size, truncatedSize: shown, outputPath };
  }

  /** Counts the lines of which nothing is shown. */
  function countHiddenLines(start: Buffer, rest: Buffer): number {
    const startShown = head.bytes()[start.length] === newline ? newlinesIn(start) + 1 : 0;
    const open = isOpen ? 1 : 0;
    const restShown = rest.length === 0 ? 0 : newlinesIn(rest) + open;
    return newlines + open - startShown - restShown;
  }

  /** Returns the last retained bytes, at most `limit`. */
  function ending(limit: number): Buffer {
    const held = tail.bytes();
    const all = size - held.length <= head.length ? Buffer.concat([head.bytes(), held]) : held;
    return all.subarray(Math.max(0, all.length - limit));
  }

  return {
    /** Adds a chunk; the bytes that it retains are copied. */
    push(chunk: Uint8Array): void {
      if (chunk.length === 0) return;
      size += chunk.length;
      isOpen = chunk[chunk.length - 1] !== newline;
      for (let at = chunk.indexOf(newline); at !== -1; at = chunk.indexOf(newline, at + 1)) newlines += 1;
      const capacity = Math.max(0, head.max - head.length);
      if (capacity > 0) head.push(chunk.subarray(0, capacity));
      if (tail.max > 0 && capacity < chunk.length) tail.push(chunk.subarray(capacity));
    },
    /** True if the output is larger than the model may see. */
    isOver,
    /** Returns the part that the model sees; `outputPath` names the whole. */
    bound,
    get size() {
      return size;
    },
  };
}

const newline = 10;
const nothing = Buffer.alloc(0);
const places = { head: "below", tail: "above", both: "here" };

/** Creates a buffer that retains the last `max` bytes pushed. */
function createBytes(max: number) {
  let buffer = nothing;
  let length = 0;
  const retained = () => buffer.subarray(Math.max(0, length - max), length);
  return {
    max,
    push(chunk: Uint8Array): void {
      const added = chunk.subarray(Math.max(0, chunk.length - max));
      if (length + added.length > buffer.length) {
        const held = retained();
        const wanted = Math.max(held.length + added.length, Math.min(2 * buffer.length, 2 * max));
        const larger = wanted > buffer.length ? Buffer.allocUnsafe(wanted) : buffer;
        length = held.copy(larger);
        buffer = larger;
      }
      buffer.set(added, length);
      length += added.length;
    },
    bytes: retained,
    get length() {
      return Math.min(length, max);
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

/** Returns the first whole lines within the limits; a longer first line is cut between characters. */
function firstLines(bytes: Buffer, { lines, bytes: limit }: Limits): Buffer {
  let end = -1;
  for (let line = 0, at = bytes.indexOf(newline); line < lines && at !== -1 && at <= limit; line += 1) {
    end = at;
    at = bytes.indexOf(newline, at + 1);
  }
  return bytes.subarray(0, end === -1 ? characterEnd(bytes, limit) : end);
}

/** Returns the last whole lines within the limits; a longer last line is cut between characters. */
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

/** Returns the nearest position, forward or back, at which a UTF-8 character begins. */
function characterStart(bytes: Buffer, at: number, step: 1 | -1 = 1): number {
  let position = Math.max(0, at);
  while (position > 0 && position < bytes.length && ((bytes[position] ?? 0) & 0xc0) === 0x80) position += step;
  return position;
}
