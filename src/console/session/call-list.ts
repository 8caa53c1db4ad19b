import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { errorReasonWords } from "../../view/calls.ts";
import { visibleText } from "../parts/visible-text.ts";

/** A call as the timeline shows it; the whole of it is asked for when it is chosen. */
export interface CallListRow {
  readonly id: string;
  readonly callId: string;
  readonly tool: string;
  readonly agent: string;
  readonly title: string;
  /** `waiting` is pending with an open ask. */
  readonly state: "pending" | "waiting" | "running" | "completed" | "error";
  /** How it failed, in a word; of `error` only. */
  readonly reason: string;
  /** In ms since the epoch; 0 if not yet. */
  readonly start: number;
  readonly end: number;
  readonly revision: bigint;
}

/** The calls of a session, in the order in which they were accepted. */
export interface CallList {
  /** Takes a call as it is, if that is newer than what is known. */
  put(part: ToolPart): void;
  /** A running call says what it does now. */
  retitle(callId: string, title: string): void;
  clear(): void;
  all(): readonly CallListRow[];
}

/** Creates an empty one. */
export function createCallList(): CallList {
  let rows: CallListRow[] = [];
  const places = new Map<string, number>();

  function insert(row: CallListRow): void {
    places.set(row.callId, rows.length);
    rows.push(row);
    // The ids of parts sort by time; only a list that is read while calls come in has them out of order.
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

function rowOf({ id, callId, tool, agent, state, permissionIds, revision }: ToolPart): CallListRow {
  const time = state.value !== undefined && "time" in state.value ? state.value.time : undefined;
  const title = state.value !== undefined && "title" in state.value ? state.value.title : undefined;
  return {
    id,
    callId,
    tool,
    agent,
    title: visibleText((title || summaryOf(state.value?.input ?? {})).slice(0, 300)),
    state: permissionIds.length > 0 && state.case === "pending" ? "waiting" : (state.case ?? "pending"),
    reason: state.case === "error" ? errorReasonWords(state.value.reason) : "",
    start: time?.start ?? 0,
    end: time !== undefined && "end" in time ? time.end : 0,
    revision,
  };
}

/** What a call is about, before it says so itself: its first text. */
function summaryOf(input: Readonly<Record<string, unknown>>): string {
  const first = Object.values(input).find((value) => typeof value === "string");
  return typeof first === "string" ? first : "";
}
