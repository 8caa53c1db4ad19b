import { create } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { type ReadonlySignal, signal } from "@preact/signals";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { WatchSessionResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { errorReasonWords, failedCommandWords, isUnreported } from "../../view/outcomes.ts";
import { visibleText } from "../parts/visible-text.ts";
import { whileVisible } from "../shell/visibility.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { final, type Liveness, pause } from "../stream/follow.ts";

/** The pause before calls that could not be listed are listed again. */
const listPauseMs = 1_000;

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

  /** Loads the calls that had ended before the snapshot, again until it succeeds. Their revisions keep them from replacing newer states. */
  async function listCalls(): Promise<void> {
    for (let pageToken = ""; !closed.signal.aborted; ) {
      try {
        const page = await tools.listToolParts({ sessionId, pageSize: 500, pageToken }, { signal: closed.signal });
        for (const part of page.parts) take(create(SessionEventSchema, { event: { case: "part", value: part } }));
        pageToken = page.nextPageToken;
        if (pageToken === "") return;
      } catch (cause) {
        if (final.includes(ConnectError.from(cause).code)) return;
        await pause(listPauseMs, closed.signal);
      }
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

/** A call as the list shows it; its details are loaded when it is selected. */
export interface CallListRow {
  readonly id: string;
  readonly callId: string;
  readonly tool: string;
  readonly agent: string;
  readonly title: string;
  /** `waiting` means pending with an open ask; `error` also a completed call whose command failed; `unreported` see `isUnreported`. */
  readonly state: "pending" | "waiting" | "running" | "completed" | "error" | "unreported";
  /** The reason of the state `error`; empty in other states. */
  readonly reason: string;
  /** In ms since the epoch; 0 before the call started or ended. */
  readonly start: number;
  readonly end: number;
  readonly revision: bigint;
}

/** The calls of a session, in the order in which they were accepted. */
interface CallList {
  /** Stores a call unless a newer revision is known. */
  put(part: ToolPart): void;
  /** Changes the title of a running call. */
  retitle(callId: string, title: string): void;
  clear(): void;
  all(): readonly CallListRow[];
}

/** Creates an empty list. */
function createCallList(): CallList {
  let rows: CallListRow[] = [];
  const places = new Map<string, number>();

  function insert(row: CallListRow): void {
    places.set(row.callId, rows.length);
    rows.push(row);
    // Ids of parts sort by time. They arrive out of order only while older calls are being listed.
    if ((rows.at(-2)?.id ?? "") < row.id) return;
    rows.sort((one, other) => (one.id < other.id ? -1 : 1));
    for (const [place, { callId }] of rows.entries()) places.set(callId, place);
  }

  return {
    put(part) {
      const row = rowOf(part);
      const place = places.get(row.callId);
      if (place === undefined) return insert(row);
      if ((rows[place]?.revision ?? 0n) <= row.revision) rows[place] = row;
    },
    retitle(callId, title) {
      const place = places.get(callId);
      const row = place === undefined ? undefined : rows[place];
      if (place !== undefined && row !== undefined) rows[place] = { ...row, title: visibleText(title) };
    },
    clear() {
      rows = [];
      places.clear();
    },
    all: () => [...rows],
  };
}

function rowOf(part: ToolPart): CallListRow {
  const { id, callId, tool, agent, state, revision } = part;
  const time = state.value !== undefined && "time" in state.value ? state.value.time : undefined;
  const title = state.value !== undefined && "title" in state.value ? state.value.title : undefined;
  return {
    id,
    callId,
    tool,
    agent,
    title: visibleText((title || summaryOf(state.value?.input ?? {})).slice(0, 300)),
    state: stateOf(part),
    reason: state.case === "error" ? errorReasonWords(state.value.reason) : visibleText(failedCommandWords(part)),
    start: time?.start ?? 0,
    end: time !== undefined && "end" in time ? time.end : 0,
    revision,
  };
}

function stateOf(part: ToolPart): CallListRow["state"] {
  const { state, permissionIds } = part;
  if (failedCommandWords(part) !== "") return "error";
  if (isUnreported(part)) return "unreported";
  return permissionIds.length > 0 && state.case === "pending" ? "waiting" : (state.case ?? "pending");
}

/** The title of a call that has none yet: the first text of its input. */
function summaryOf(input: Readonly<Record<string, unknown>>): string {
  const first = Object.values(input).find((value) => typeof value === "string");
  return typeof first === "string" ? first : "";
}
