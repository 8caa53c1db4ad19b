import { type ReadonlySignal, signal } from "@preact/signals";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { WatchSessionResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Liveness } from "../stream/follow.ts";
import { type CallListRow, createCallList } from "./call-list.ts";

/** The live calls and events of a session. */
export interface SessionFeed {
  readonly calls: ReadonlySignal<readonly CallListRow[]>;
  readonly liveness: ReadonlySignal<Liveness>;
  /** Subscribes to every event, in order and without gaps; returns the function that unsubscribes. */
  onEvent(listener: (event: SessionEvent) => void): () => void;
  close(): void;
}

/**
 * Follows a session: a snapshot first, then its events; after a break it continues after the last sequence number. It
 * subscribes only while the tab is visible, so that the service sends nothing for tabs in the background.
 */
export function createSessionFeed({ tools, stream }: ConsoleConnection, sessionId: string): SessionFeed {
  const list = createCallList();
  const calls = signal<readonly CallListRow[]>([]);
  const liveness = signal<Liveness>("connecting");
  const listeners = new Set<(event: SessionEvent) => void>();
  const closed = new AbortController();
  /** The last sequence number; undefined before the snapshot. */
  let seen: bigint | undefined;
  let storeId = "";
  let drawing = 0;

  /** Draws changes at most once per frame, because events arrive faster than that. */
  function draw(): void {
    if (drawing !== 0) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      calls.value = list.all();
    });
  }

  function take(event: SessionEvent): void {
    const { event: content } = event;
    if (content.case === "part") list.put(content.value);
    if (content.case === "progress" && content.value.title !== undefined)
      list.retitle(content.value.callId, content.value.title);
    if (content.case === "part" || content.case === "progress") draw();
    for (const listener of listeners) listener(event);
  }

  function onFrame(frame: WatchSessionResponse): void {
    liveness.value = "live";
    if (frame.storeId !== "" && storeId !== "" && frame.storeId !== storeId) startOver();
    if (frame.storeId !== "") storeId = frame.storeId;
    if (frame.event !== undefined) take(frame.event);
    if (frame.snapshotEnd) void listCalls();
    if (seen !== undefined || frame.snapshotEnd) seen = frame.lastSeq > (seen ?? 0n) ? frame.lastSeq : (seen ?? 0n);
  }

  function startOver(): void {
    seen = undefined;
    list.clear();
    draw();
  }

  /** Loads the calls that had ended before the snapshot. Their revisions keep them from replacing newer states. */
  async function listCalls(): Promise<void> {
    try {
      for (let pageToken = ""; ; ) {
        const page = await tools.listToolParts({ sessionId, pageSize: 500, pageToken }, { signal: closed.signal });
        for (const part of page.parts) list.put(part);
        draw();
        pageToken = page.nextPageToken;
        if (pageToken === "") return;
      }
    } catch {
      // The stream breaks as well, and the next snapshot loads them again.
      startOver();
    }
  }

  const listen = (signal: AbortSignal) =>
    stream.watch(
      {
        want: () => ({
          case: "session",
          value: seen === undefined ? { sessionId, snapshot: true } : { sessionId, afterSeq: seen },
        }),
        onFrame(frame) {
          if (frame.case === "session") onFrame(frame.value);
        },
        onLoss(how) {
          liveness.value = how;
        },
        onGap: startOver,
      },
      signal,
    );
  void whileVisible(listen, closed.signal);

  return {
    calls,
    liveness,
    onEvent(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    close() {
      closed.abort();
      cancelAnimationFrame(drawing);
    },
  };
}
