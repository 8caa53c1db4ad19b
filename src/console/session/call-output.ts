import { type ReadonlySignal, signal } from "@preact/signals";
import type { ToolOutput } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { type AnsiLine, type AnsiReader, createAnsiReader } from "./ansi.ts";

/** The loaded part of a call's output, as lines. */
export interface OutputReader {
  readonly lines: ReadonlySignal<readonly AnsiLine[]>;
  /** The total size in bytes, and the bytes before and after the loaded part. */
  readonly extent: ReadonlySignal<{ total: number; before: number; after: number }>;
  /** Appends a live piece. */
  take(piece: ToolOutput): void;
  /** Loads the next piece. */
  more(): Promise<void>;
  /** Replaces the loaded part by the last piece. */
  toEnd(): Promise<void>;
  /** Replaces the loaded part by the first piece. */
  toStart(): Promise<void>;
}

/** The page holds at most this many lines; paging loads the others. */
const maxLines = 50_000;
const pieceBytes = 262_144;

/** Creates a reader of a stored output, which may still grow. */
export function createOutputReader(
  { tools }: ConsoleConnection,
  ref: { sessionId: string; output: string },
): OutputReader {
  const lines = signal<readonly AnsiLine[]>([]);
  const extent = signal({ total: 0, before: 0, after: 0 });
  let complete: AnsiLine[] = [];
  let reader: AnsiReader = createAnsiReader();
  let decoder = new TextDecoder();
  /** The offsets of the loaded part. */
  let start = 0;
  let end = 0;
  let total = 0;
  let reading: Promise<void> | undefined;
  /** The jump to take after the load that runs; a later one replaces it. */
  let next: (() => Promise<void>) | undefined;
  let drawing = 0;

  function draw(): void {
    if (drawing !== 0) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      const rest = reader.rest();
      lines.value = rest.length > 0 ? [...complete, rest] : [...complete];
      extent.value = { total, before: start, after: total - end };
    });
  }

  function append(bytes: Uint8Array): void {
    complete.push(...reader.push(decoder.decode(bytes, { stream: true })));
    if (complete.length > maxLines) complete = complete.slice(-maxLines / 2);
    end += bytes.length;
    total = Math.max(total, end);
    draw();
  }

  function startAt(offset: number): void {
    complete = [];
    reader = createAnsiReader();
    decoder = new TextDecoder();
    start = offset;
    end = offset;
  }

  async function read(limit: number): Promise<void> {
    const { data, totalBytes } = await tools.readToolOutput({
      ...ref,
      range: { case: "bytes", value: { offset: BigInt(end), limit } },
    });
    total = Math.max(total, Number(totalBytes));
    append(data);
  }

  /** Runs one load at a time; two would append the same piece twice. */
  function once(work: () => Promise<void>): Promise<void> {
    reading ??= work().finally(() => {
      reading = undefined;
    });
    return reading;
  }

  /** Goes to another place once the load that runs has ended. */
  async function jump(work: () => Promise<void>): Promise<void> {
    next = work;
    while (reading !== undefined) await reading.catch(() => undefined);
    if (next === work) await once(work);
  }

  return {
    lines,
    extent,
    take({ offset, data, length }) {
      const at = Number(offset);
      if (at === 0 && end > 0) startAt(0);
      total = at + length;
      // A piece behind a gap is loaded when the reader scrolls there.
      if (at === end && reading === undefined) append(data);
      else draw();
    },
    more: () => once(() => read(pieceBytes)),
    toStart: () =>
      jump(async () => {
        startAt(0);
        await read(pieceBytes);
      }),
    toEnd: () =>
      jump(async () => {
        if (end === total) return;
        startAt(Math.max(0, total - pieceBytes));
        while (end < total) await read(pieceBytes);
      }),
  };
}
