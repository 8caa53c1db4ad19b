import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { sizeOf } from "../../view/quantities.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Watch } from "../stream/stream.ts";
import { type AnsiLine, linesOf, plainOf } from "./ansi.ts";
import { createOutputReader, type OutputReader } from "./call-output.ts";
import type { SessionFeed } from "./session-feed.ts";

/** The output of a call: what is stored, page by page and live; else what the model was given. */
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

/** Where the output is stored: a completed call says it, a running one with its first piece. */
function useStoredOutput(
  { sessionId, callId, state }: ToolPart,
  connection: ConsoleConnection,
  feed: SessionFeed,
): string {
  const told = useSignal("");
  const path = state.case === "completed" ? state.value.metadata?.outputPath : undefined;
  const isRunning = state.case === "running";
  useEffect(() => {
    if (!isRunning) return;
    const found = new AbortController();
    const take = ({ event }: SessionEvent) => {
      if (event.case !== "output" || event.value.callId !== callId) return;
      told.value = event.value.output;
      found.abort();
    };
    const stop = feed.onEvent(take);
    // What it wrote before this page looked is in the log, too.
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
  return typeof path === "string" ? path : told.value;
}

const lineHeight = 20;

function Lines({ output, lines, isLive }: { output?: OutputReader; lines: readonly AnsiLine[]; isLive: boolean }) {
  const isFollowing = useSignal(isLive);
  const search = useSignal("");
  const hit = useSignal(0);
  const hits = useComputed(() => {
    const wanted = search.value.toLowerCase();
    const searched = output?.lines.value ?? lines;
    if (wanted === "") return [];
    return searched.flatMap((line, i) => (plainOf(line).toLowerCase().includes(wanted) ? [i] : []));
  });
  const isHit = new Set(hits.value);
  const current = hits.value[hit.value] ?? -1;
  const extent = output?.extent.value;
  const go = (step: number) => {
    const count = hits.value.length;
    if (count > 0) hit.value = (hit.value + step + count) % count;
  };
  // What did not join on to what is loaded: who follows wants it all the time.
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
        <h3>Output{extent !== undefined && <small> {sizeOf(extent.total)}</small>}</h3>
        <input
          type="search"
          aria-label="Search the output"
          placeholder="Search"
          value={search}
          onInput={({ currentTarget }) => {
            search.value = currentTarget.value;
            hit.value = 0;
            isFollowing.value = false;
          }}
          onKeyDown={({ key, shiftKey }) => {
            if (key === "Enter") go(shiftKey ? -1 : 1);
          }}
        />
        {search.value !== "" && (
          <span class="hits" role="status">
            {hits.value.length === 0 ? "none" : `${hit.value + 1} of ${hits.value.length}`}
          </span>
        )}
        {isLive && (
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
        )}
      </div>
      <VirtualList
        items={lines}
        rowHeight={lineHeight}
        label="Lines of output"
        keyOf={(_, i) => i}
        focusable
        current={current === -1 ? jump.value : current}
        follow={isFollowing.value}
        onScrolledBack={(atEnd) => {
          jump.value = -1;
          // Of what has ended nothing is added but what is read on, and who reads on stays where they are.
          if (search.value === "" && (isLive || !atEnd)) isFollowing.value = atEnd;
          if (atEnd && extent !== undefined && extent.after > 0) void output?.more();
        }}
        row={(line, i) => (
          <div class="output-line" data-hit={isHit.has(i) ? (i === current ? "current" : "yes") : undefined}>
            {line.map((span, place) => (
              <span key={place} class={span.look}>
                {span.text}
              </span>
            ))}
          </div>
        )}
      />
      {output !== undefined && extent !== undefined && extent.before + extent.after > 0 && (
        <p class="paging">
          {sizeOf(extent.total - extent.before - extent.after)} of {sizeOf(extent.total)} shown.
          {extent.before > 0 && (
            <button type="button" onClick={() => void toStart()}>
              Go to start
            </button>
          )}
          {extent.after > 0 && (
            <button type="button" onClick={() => void output.more()}>
              Load more
            </button>
          )}
          {extent.after > 0 && (
            <button type="button" onClick={() => void toEnd()}>
              Go to end
            </button>
          )}
        </p>
      )}
    </section>
  );
}
