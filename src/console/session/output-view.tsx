import { type ReadonlySignal, type Signal, signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { SessionEvent, ToolOutput } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { sizeOf } from "../../view/quantities.ts";
import { checkedBy } from "../parts/bound.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { failureText } from "../shell/load.ts";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Watch } from "../stream/follow.ts";
import { type AnsiLine, type AnsiReader, createAnsiReader, linesOf, plainOf } from "./ansi.ts";
import type { SessionFeed } from "./session-feed.ts";

/** The output of a call: the stored output, paged and live, or the text that the model got if nothing is stored. */
export function OutputView({
  part,
  connection,
  feed,
}: {
  part: ToolPart;
  connection: ConsoleConnection;
  feed: SessionFeed;
}) {
  const { sessionId, callId, state } = part;
  const stored = useStoredOutput(part, connection, feed);
  const output = useMemo(
    () => (stored === "" ? undefined : createOutputReader(connection, { sessionId, output: stored })),
    [connection, sessionId, stored],
  );
  useEffect(() => {
    if (output === undefined) return;
    const stop = feed.onEvent(({ event }) => {
      if (event.case === "output" && event.value.callId === callId) output.take(event.value);
    });
    void output.toStart();
    return stop;
  }, [output]);

  const text = state.case === "completed" ? state.value.output : "";
  const given = useMemo(() => linesOf(text), [text]);
  if (output !== undefined)
    return <Lines output={output} lines={output.lines.value} isLive={state.case === "running"} />;
  if (state.case === "running") return <p class="hint">No output yet.</p>;
  if (given.length === 0) return null;
  return <Lines lines={given} isLive={false} />;
}

/** Returns the reference of the stored output: from the metadata of a completed call, or from a running call’s first piece. */
function useStoredOutput(
  { sessionId, callId, state }: ToolPart,
  connection: ConsoleConnection,
  feed: SessionFeed,
): string {
  const announced = useSignal("");
  const path = state.case === "completed" ? state.value.metadata?.outputPath : undefined;
  const isRunning = state.case === "running";
  useEffect(() => {
    if (!isRunning) return;
    const found = new AbortController();
    const take = ({ event }: SessionEvent) => {
      if (event.case !== "output" || event.value.callId !== callId) return;
      announced.value = event.value.output;
      found.abort();
    };
    const stop = feed.onEvent(take);
    // The log also holds the pieces that were written before this page was opened.
    const watch: Watch = {
      want: () => ({ case: "session", value: { sessionId, callId } }),
      onFrame(frame) {
        if (frame.case === "session" && frame.value.event !== undefined) take(frame.value.event);
      },
    };
    void whileVisible((signal) => connection.stream.watch(watch, signal), found.signal);
    return () => {
      found.abort();
      stop();
    };
  }, [isRunning, sessionId, callId]);
  return typeof path === "string" ? path : announced.value;
}

const lineHeight = 20;

function Lines({ output, lines, isLive }: { output?: OutputReader; lines: readonly AnsiLine[]; isLive: boolean }) {
  const isFollowing = useSignal(isLive);
  const search = useSearch(output, lines);
  const extent = output?.extent.value;
  // A live piece may leave a gap behind what is loaded; a reader who follows the output wants the gap filled.
  useEffect(() => {
    if (isLive && isFollowing.value && extent !== undefined && extent.after > 0) void output?.toEnd();
  }, [isLive, isFollowing.value, extent]);
  const jump = useSignal(-1);
  const failed = output?.failed.value;
  const toStart = async () => {
    await output?.toStart();
    isFollowing.value = false;
    jump.value = 0;
  };
  const toEnd = async () => {
    await output?.toEnd();
    isFollowing.value = true;
  };

  return (
    <section class="block output" aria-label="Output">
      <div class="output-head">
        <h2>Output{extent !== undefined && extent.total > 0 && <small> {sizeOf(extent.total)}</small>}</h2>
        <SearchField search={search} onInput={() => (isFollowing.value = false)} />
        {isLive && (
          <label class="follow">
            <input type="checkbox" {...checkedBy(isFollowing)} />
            Follow
          </label>
        )}
      </div>
      <VirtualList
        items={lines}
        rowHeight={lineHeight}
        label="Lines of output"
        keyOf={(_, i) => i}
        focusable
        current={search.current === -1 ? jump.value : search.current}
        follow={isFollowing.value}
        onScrolledBack={(atEnd) => {
          jump.value = -1;
          // The output of an ended call grows only when the reader loads more, and then the position stays.
          if (search.text.value === "" && (isLive || !atEnd)) isFollowing.value = atEnd;
          if (atEnd && extent !== undefined && extent.after > 0) void output?.more();
        }}
        row={(line, i) => <OutputLine line={line} hit={search.hitAt(i)} />}
      />
      {failed && (
        <p class="problem" role="alert">
          The output could not be read: {failed.why}{" "}
          <button type="button" onClick={() => void failed.retry()}>
            Try again
          </button>
        </p>
      )}
      {output !== undefined && <Paging output={output} toStart={toStart} toEnd={toEnd} />}
    </section>
  );
}

function OutputLine({ line, hit }: { line: AnsiLine; hit: "current" | "yes" | undefined }) {
  return (
    <div class="output-line" data-hit={hit}>
      {line.map((span, place) => (
        <span key={place} class={span.look} style={coloursOf(span.look)}>
          {span.text}
        </span>
      ))}
    </div>
  );
}

/** The colours that a look names: those of `fg-N` and `bg-N`. */
function coloursOf(look: string) {
  const [, ink] = /\bfg-(\d+)/.exec(look) ?? [];
  const [, paper] = /\bbg-(\d+)/.exec(look) ?? [];
  return {
    color: ink && `var(--ansi-${Number(ink) % 8})`,
    background: paper && `color-mix(in srgb, var(--ansi-${Number(paper) % 8}) 22%, transparent)`,
  };
}

/** The buttons that load other pages of an output that is not loaded whole. */
function Paging({
  output,
  toStart,
  toEnd,
}: {
  output: OutputReader;
  toStart: () => Promise<void>;
  toEnd: () => Promise<void>;
}) {
  const { total, before, after } = output.extent.value;
  if (before + after === 0) return null;
  return (
    <p class="paging">
      {sizeOf(total - before - after)} of {sizeOf(total)} shown.
      {before > 0 && (
        <button type="button" onClick={() => void toStart()}>
          Go to start
        </button>
      )}
      {after > 0 && (
        <button type="button" onClick={() => void output.more()}>
          Load more
        </button>
      )}
      {after > 0 && (
        <button type="button" onClick={() => void toEnd()}>
          Go to end
        </button>
      )}
    </p>
  );
}

/** A search in the loaded lines. */
interface OutputSearch {
  readonly text: Signal<string>;
  readonly count: number;
  /** The index of the current hit among the hits. */
  readonly index: number;
  /** The line of the current hit; -1 if there is none. */
  readonly current: number;
  hitAt(line: number): "current" | "yes" | undefined;
  /** Goes to another hit; after the last one comes the first. */
  step(by: number): void;
  set(text: string): void;
}

/** Searches the loaded lines of an output, or lines that are given. */
function useSearch(output: OutputReader | undefined, lines: readonly AnsiLine[]): OutputSearch {
  const text = useSignal("");
  const index = useSignal(0);
  const hits = useComputed(() => {
    const wanted = text.value.toLowerCase();
    const searched = output?.lines.value ?? lines;
    if (wanted === "") return [];
    return searched.flatMap((line, i) => (plainOf(line).toLowerCase().includes(wanted) ? [i] : []));
  });
  const isHit = new Set(hits.value);
  const count = hits.value.length;
  const current = hits.value[index.value] ?? -1;
  return {
    text,
    count,
    index: index.value,
    current,
    hitAt: (line) => (isHit.has(line) ? (line === current ? "current" : "yes") : undefined),
    step(by) {
      if (count > 0) index.value = (index.value + by + count) % count;
    },
    set(next) {
      text.value = next;
      index.value = 0;
    },
  };
}

/** The field of a search, with the number of hits. */
function SearchField({ search, onInput }: { search: OutputSearch; onInput: () => void }) {
  return (
    <>
      <input
        type="search"
        aria-label="Search the output"
        placeholder="Search"
        value={search.text}
        onInput={({ currentTarget }) => {
          search.set(currentTarget.value);
          onInput();
        }}
        onKeyDown={({ key, shiftKey }) => {
          if (key === "Enter") search.step(shiftKey ? -1 : 1);
        }}
      />
      {search.text.value !== "" && (
        <span class="hits" role="status">
          {search.count === 0 ? "none" : `${search.index + 1} of ${search.count}`}
        </span>
      )}
    </>
  );
}

/** The loaded part of a call's output, as lines. */
interface OutputReader {
  readonly lines: ReadonlySignal<readonly AnsiLine[]>;
  /** The total size in bytes, and the bytes before and after the loaded part. */
  readonly extent: ReadonlySignal<{ total: number; before: number; after: number }>;
  /** The reason why the last load failed, and what tries it again; undefined if it did not. */
  readonly failed: ReadonlySignal<{ why: string; retry: () => Promise<void> } | undefined>;
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
function createOutputReader({ tools }: ConsoleConnection, ref: { sessionId: string; output: string }): OutputReader {
  const lines = signal<readonly AnsiLine[]>([]);
  const extent = signal({ total: 0, before: 0, after: 0 });
  const failed: Signal<OutputReader["failed"]["value"]> = signal(undefined);
  let complete: AnsiLine[] = [];
  let reader: AnsiReader = createAnsiReader();
  let decoder = new TextDecoder();
  /** The pieces of the loaded part: their bytes, and the lines that ended in them. */
  let pieces: { bytes: number; lines: number }[] = [];
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
    const added = reader.push(decoder.decode(bytes, { stream: true }));
    // A spread of so many lines would be too many arguments.
    for (const line of added) complete.push(line);
    pieces.push({ bytes: bytes.length, lines: added.length });
    if (complete.length > maxLines) dropOldest();
    end += bytes.length;
    total = Math.max(total, end);
    draw();
  }

  /** Drops whole pieces, so that the bytes before the loaded part are known. */
  function dropOldest(): void {
    let [count, dropped] = [0, 0];
    while (count < pieces.length - 1 && complete.length - dropped > maxLines / 2) {
      const { bytes, lines } = pieces[count] ?? { bytes: 0, lines: 0 };
      start += bytes;
      dropped += lines;
      count += 1;
    }
    pieces = pieces.slice(count);
    complete = complete.slice(dropped);
  }

  function startAt(offset: number): void {
    complete = [];
    pieces = [];
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

  /** Runs one load at a time; two would append the same piece twice. One that fails is shown. */
  function once(work: () => Promise<void>): Promise<void> {
    reading ??= work()
      .then(
        () => undefined,
        (error: unknown) => ({ why: failureText(error), retry: () => once(work) }),
      )
      .then((failure) => {
        failed.value = failure;
        reading = undefined;
        draw();
      });
    return reading;
  }

  /** Goes to another place once the load that runs has ended. */
  async function jump(work: () => Promise<void>): Promise<void> {
    next = work;
    while (reading !== undefined) await reading;
    if (next === work) await once(work);
  }

  return {
    lines,
    extent,
    failed,
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
