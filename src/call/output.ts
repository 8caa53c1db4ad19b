import { create } from "@bufbuild/protobuf";
import { type ToolOutput, ToolOutputSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { OutputLimit } from "../tool/errors.ts";
import type { Tool } from "../tool/tool.ts";
import { type Bounded, createWindow } from "./output-window.ts";
import type { OutputStore } from "./ports.ts";

/** Output of one call. Bytes are stored first, then emitted to watchers, in order; memory is bounded. */
export interface CallOutput {
  /**
   * Takes the chunk, which the writer may reuse at once, and resolves when there is capacity for more. Throws `OutputLimit` for
   * what cannot be stored whole.
   */
  write(chunk: Uint8Array): Promise<void>;
  /** Resolves when everything written is stored and emitted. */
  end(): Promise<void>;
  /** Takes bytes that an earlier run has emitted: stores them without an event. Called before the first write. */
  restore(data: Uint8Array): Promise<void>;
  /** Returns the number of bytes that are stored and emitted. */
  size(): number;
  /** Returns what the model sees of everything written. */
  written(): Bounded;
  /** Returns what the model sees of a text that the tool returned at once; a text that is cut is stored first. */
  whole(text: string): Promise<Bounded>;
}

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
}): CallOutput {
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
    async write(chunk) {
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
    async end() {
      while ((backlog.size > 0 && failure === undefined) || flushing) await startFlush();
      check();
    },
    async restore(data) {
      window.push(data);
      await store.append(root, id, data);
      stored += data.length;
    },
    size: () => stored,
    written: () => window.bound(stored + backlog.size > 0 ? path : null),
    async whole(text) {
      const data = Buffer.from(text);
      const all = createWindow(keep);
      all.push(data);
      if (!all.isOver()) return all.bound(null);
      await store.append(root, id, data);
      return all.bound(path);
    },
  };
}

/** Bytes that wait to be stored. Two buffers take turns, however much is written: one is stored while the other fills. */
interface Backlog {
  /** Bytes that wait. */
  readonly size: number;
  /** Copies a chunk to the end. */
  add(chunk: Uint8Array): void;
  /** Takes everything that waits; the bytes are valid until `release`. */
  take(): Buffer;
  /** Makes the buffer of what was taken last available again. */
  release(): void;
}

const empty = Buffer.alloc(0);

/** Creates an empty backlog. A buffer over `maxRetainedBytes` is dropped after use. */
export function createBacklog(maxRetainedBytes: number): Backlog {
  let filling = empty;
  let spare = empty;
  let taken = empty;
  let size = 0;
  return {
    get size() {
      return size;
    },
    add(chunk) {
      const wanted = size + chunk.length;
      if (wanted > filling.length) {
        const larger = Buffer.allocUnsafe(Math.max(wanted, Math.min(2 * filling.length, maxRetainedBytes)));
        filling.copy(larger, 0, 0, size);
        filling = larger;
      }
      filling.set(chunk, size);
      size = wanted;
    },
    take() {
      const data = filling.subarray(0, size);
      taken = filling;
      filling = spare;
      spare = empty;
      size = 0;
      return data;
    },
    release() {
      if (taken.length <= maxRetainedBytes) spare = taken;
      taken = empty;
    },
  };
}
