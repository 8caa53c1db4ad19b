import { create } from "@bufbuild/protobuf";
import { type ToolOutput, ToolOutputSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { OutputLimit } from "../tool/errors.ts";
import type { Tool } from "../tool/tool.ts";
import { type Bounded, createWindow } from "./output-window.ts";
import type { OutputStore } from "./ports.ts";

/** One call's output: what is written goes to the store, then to whoever watches, in order; memory is bounded. */
export type CallOutput = ReturnType<typeof createCallOutput>;

/** Bytes that wait to be stored before a writer has to wait, and the delay after which they are. */
const backlogBytes = 256 * 1024;
const pieceBytes = 32 * 1024;
const flushMs = 50;
/** Larger buffers are not kept for what comes next. */
const maxStoredBytes = 2 * backlogBytes;

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
  // Two buffers in turn, however much is written: one is stored while the other fills.
  let backlog = Buffer.alloc(0);
  let spare = backlog;
  let waiting = 0;
  let stored = 0;
  let timer: NodeJS.Timeout | undefined;
  let flushing: Promise<void> | undefined;
  let failure: unknown;

  async function flush(): Promise<void> {
    clearTimeout(timer);
    timer = undefined;
    while (waiting > 0) {
      const data = backlog.subarray(0, waiting);
      const emptied = backlog;
      backlog = spare;
      waiting = 0;
      await store.append(root, id, data);
      spare = emptied.length <= maxStoredBytes ? emptied : Buffer.alloc(0);
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

  function add(chunk: Uint8Array): void {
    const size = waiting + chunk.length;
    if (size > backlog.length) {
      const larger = Buffer.allocUnsafe(Math.max(size, Math.min(2 * backlog.length, maxStoredBytes)));
      backlog.copy(larger, 0, 0, waiting);
      backlog = larger;
    }
    backlog.set(chunk, waiting);
    waiting = size;
  }

  function check(): void {
    if (failure !== undefined) throw failure;
  }

  return {
    /**
     * Takes the chunk, which is the writer's again at once, and resolves when there is room for more. Throws `OutputLimit` for
     * what cannot be kept whole.
     */
    async write(chunk: Uint8Array): Promise<void> {
      check();
      if (window.size + chunk.length > limit) {
        throw new OutputLimit(
          `The output is over ${limit} bytes, the most that can be kept; the call was stopped. Write less, or into a file.`,
        );
      }
      window.push(chunk);
      add(chunk);
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
      return window.bound(stored + waiting > 0 ? path : null);
    },
    /** Bounds a text that the tool returned at once; what is cut is stored first. */
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
