import { type ReadonlySignal, signal } from "@preact/signals";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { WatchSessionResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Liveness } from "../stream/follow.ts";
import { type CallListRow, createCallList } from "./call-list.ts";

/** What happens in a session, live. */
export interface SessionFeed {
  readonly calls: ReadonlySignal<readonly CallListRow[]>;
  readonly liveness: ReadonlySignal<Liveness>;
  /** Told of each event, in order, without gap; returns how to stop. */
  onEvent(listener: (event: SessionEvent) => void): () => void;
  close(): void;
}

/**
 * Follows a session: first what is, then what happens; after a break it goes on behind the last number seen. It listens only
 * while the tab is looked at, so that nothing is sent for tabs in the background.
 */
export function createSessionFeed({ tools, stream }: ConsoleConnection, sessionId: string): SessionFeed {
  const list = createCallList();
  const calls = signal<readonly CallListRow[]>([]);
  const liveness = signal<Liveness>("connecting");
  const listeners = new Set<(event: SessionEvent) => void>();
  const closed = new AbortController();
  /** The last number seen; undefined before the snapshot. */
  let seen: bigint | undefined;
  let storeId = "";
  let drawing = 0;

  /** Events come faster than anybody sees: what changed is drawn once a frame. */
  function draw(): void {
    if (drawing !== 0) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      calls.value = list.all();
    });
  }

  function take(event: SessionEvent): void {
    const { event: told } = event;
    if (told.case === "part") list.put(told.value);
    if (told.case === "progress" && told.value.title !== undefined) list.retitle(told.value.callId, told.value.title);
    if (told.case === "part" || told.case === "progress") draw();
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

  /** The calls that had ended before the snapshot. Each says how new it is, so nothing newer is lost by reading them late. */
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
      // The stream breaks as well, and what was not read is read again with the next snapshot.
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
