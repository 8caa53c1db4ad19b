import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { sizeOf } from "../../view/quantities.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Watch } from "../stream/watch.ts";
import { type AnsiLine, linesOf } from "./ansi.ts";
import { createOutputReader, type OutputReader } from "./call-output.ts";
import { SearchField, useSearch } from "./output-search.tsx";
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
        <h2>Output{extent !== undefined && <small> {sizeOf(extent.total)}</small>}</h2>
        <SearchField search={search} onInput={() => (isFollowing.value = false)} />
        {isLive && <FollowBox isFollowing={isFollowing} />}
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
      {output !== undefined && <Paging output={output} toStart={toStart} toEnd={toEnd} />}
    </section>
  );
}

function FollowBox({ isFollowing }: { isFollowing: Signal<boolean> }) {
  return (
    <label class="follow">
      <input
        type="checkbox"
        checked={isFollowing}
        onChange={({ currentTarget }) => {
          isFollowing.value = currentTarget.checked;
        }}
      />
      Follow
    </label>
  );
}

function OutputLine({ line, hit }: { line: AnsiLine; hit: "current" | "yes" | undefined }) {
  return (
    <div class="output-line" data-hit={hit}>
      {line.map((span, place) => (
        <span key={place} class={span.look}>
          {span.text}
        </span>
      ))}
    </div>
  );
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
