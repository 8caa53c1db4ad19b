import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { errorReasonWords, failedCommandWords, isUnreported } from "../../view/calls.ts";
import { visibleText } from "../parts/visible-text.ts";

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
export interface CallList {
  /** Stores a call unless a newer revision is known. */
  put(part: ToolPart): void;
  /** Changes the title of a running call. */
  retitle(callId: string, title: string): void;
  clear(): void;
  all(): readonly CallListRow[];
}

/** Creates an empty list. */
export function createCallList(): CallList {
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
