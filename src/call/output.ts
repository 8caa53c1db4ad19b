import { create } from "@bufbuild/protobuf";
import { type ToolOutput, ToolOutputSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { OutputLimit } from "../tool/errors.ts";
import type { Tool } from "../tool/tool.ts";
import type { OutputStore } from "./ports.ts";

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

/** One call's output: what is written goes to the store, then to whoever watches, in order; memory is bounded. */
export type CallOutput = ReturnType<typeof createCallOutput>;

/** Bytes that wait to be stored before a writer has to wait, and the delay after which they are. */
const backlogBytes = 256 * 1024;
const pieceBytes = 32 * 1024;
const flushMs = 50;

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
  store: OutputStore;
  /** The most that may be written, in bytes. */
  limit: number;
  keep: Tool["keep"];
  /** Tells watchers; its bytes are stored by then. Rejects if the call is no longer ours. */
  record(pieces: ToolOutput[]): Promise<void>;
}) {
  const path = `toolgate-output:${id}`;
  const window = createWindow(keep);
  let backlog: Uint8Array[] = [];
  let waiting = 0;
  let stored = 0;
  let timer: NodeJS.Timeout | undefined;
  let flushing: Promise<void> | undefined;
  let failure: unknown;

  async function flush(): Promise<void> {
    clearTimeout(timer);
    timer = undefined;
    while (waiting > 0) {
      const data = Buffer.concat(backlog);
      backlog = [];
      waiting = 0;
      await store.append(root, id, data);
      const pieces: ToolOutput[] = [];
      for (let at = 0; at < data.length; at += pieceBytes) {
        const length = Math.min(pieceBytes, data.length - at);
        pieces.push(create(ToolOutputSchema, { callId, offset: BigInt(stored + at), length, output: path }));
      }
      stored += data.length;
      await record(pieces);
    }
  }

  /** One flush at a time; the first failure is kept for whoever writes or ends next. */
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
    /** Resolves when there is room for more. Throws `OutputLimit` for what cannot be kept whole. */
    async write(chunk: Uint8Array): Promise<void> {
      check();
      if (window.size + chunk.length > limit) {
        throw new OutputLimit(
          `The output is over ${limit} bytes, the most that can be kept; the call was stopped. Write less, or into a file.`,
        );
      }
      window.push(chunk);
      backlog.push(chunk);
      waiting += chunk.length;
      if (waiting < pieceBytes) {
        timer ??= setTimeout(() => void startFlush(), flushMs);
        return;
      }
      const flushed = startFlush();
      if (waiting < backlogBytes) return;
      await flushed;
      check();
    },
    /** Resolves when all that was written is stored and told. */
    async end(): Promise<void> {
      while (waiting > 0 || flushing) await startFlush();
      check();
    },
    /** What the model sees of what was written. */
    written(): Bounded {
      return bound(window, keep, stored + waiting > 0 ? path : null);
    },
    /** Bounds a text that the tool returned at once; what is cut is stored first. */
    async whole(text: string): Promise<Bounded> {
      const data = Buffer.from(text);
      const all = createWindow(keep);
      all.push(data);
      if (!all.isOver()) return bound(all, keep, null);
      await store.append(root, id, data);
      return bound(all, keep, path);
    },
  };
}

/** Keeps as many bytes of one end as the model may see, and counts the rest. */
function createWindow(keep: Tool["keep"]) {
  let chunks: Uint8Array[] = [];
  let held = 0;
  let size = 0;
  let newlines = 0;
  return {
    push(chunk: Uint8Array): void {
      size += chunk.length;
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) newlines += 1;
      if (keep.end === "head" && held > keep.bytes) return;
      chunks.push(chunk);
      held += chunk.length;
      while (keep.end === "tail" && chunks.length > 1 && held - (chunks[0]?.length ?? 0) > keep.bytes) {
        held -= chunks.shift()?.length ?? 0;
      }
    },
    isOver: () => size > keep.bytes || newlines > keep.lines,
    get bytes(): Buffer {
      const all = Buffer.concat(chunks);
      chunks = [all];
      return all;
    },
    get size() {
      return size;
    },
    get newlines() {
      return newlines;
    },
  };
}

function bound(window: ReturnType<typeof createWindow>, keep: Tool["keep"], outputPath: string | null): Bounded {
  const { bytes, size, newlines } = window;
  if (!window.isOver()) {
    return { text: bytes.toString(), truncated: false, originalSize: size, truncatedSize: size, outputPath };
  }
  const kept = keep.end === "head" ? head(bytes, keep) : tail(bytes, keep);
  const lines = Math.max(0, newlines - kept.filter((byte) => byte === 10).length);
  const notice =
    `[${lines > 0 ? `${lines} lines` : `${size - kept.length} bytes`} are left out ${keep.end === "head" ? "below" : "above"}. ` +
    `The whole output has ${size} bytes: read it with the read tool, filePath "${outputPath}", offset and limit.]`;
  const text = kept.toString();
  return {
    text: keep.end === "head" ? `${text}\n\n${notice}` : `${notice}\n\n${text}`,
    truncated: true,
    originalSize: size,
    truncatedSize: kept.length,
    outputPath,
  };
}

/** The first whole lines within the limits; a first line that is longer is cut between characters. */
function head(bytes: Buffer, { lines, bytes: limit }: Tool["keep"]): Buffer {
  let end = -1;
  for (let line = 0, at = bytes.indexOf(10); line < lines && at !== -1 && at <= limit; line += 1) {
    end = at;
    at = bytes.indexOf(10, at + 1);
  }
  return bytes.subarray(0, end === -1 ? characterEnd(bytes, limit) : end);
}

/** The last whole lines within the limits; a last line that is longer is cut between characters. */
function tail(bytes: Buffer, { lines, bytes: limit }: Tool["keep"]): Buffer {
  let start = bytes.length;
  // A newline at the very end belongs to the last line.
  let before = bytes.at(-1) === 10 ? bytes.length - 1 : bytes.length;
  for (let line = 0; line < lines; line += 1) {
    const newline = before > 0 ? bytes.lastIndexOf(10, before - 1) : -1;
    if (bytes.length - (newline + 1) > limit) break;
    start = newline + 1;
    before = newline;
    if (newline === -1) break;
  }
  return bytes.subarray(start < bytes.length ? start : characterStart(bytes, bytes.length - limit));
}

function characterEnd(bytes: Buffer, at: number): number {
  const start = Math.min(at, bytes.length);
  return start < bytes.length ? characterStart(bytes, start, -1) : start;
}

/** The nearest place, forward or back, at which a UTF-8 character begins. */
function characterStart(bytes: Buffer, at: number, step: 1 | -1 = 1): number {
  let place = at;
  while (place > 0 && place < bytes.length && ((bytes[place] ?? 0) & 0xc0) === 0x80) place += step;
  return place;
}
