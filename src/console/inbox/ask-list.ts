import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { callKeyOf } from "../../view/asks.ts";
import type { SettledAsk } from "../parts/settled.ts";

/** An ask in the inbox. */
export interface InboxAsk {
  readonly request: PermissionRequest;
  /** The settlement, shown for a moment before the ask is removed; "unseen" if it was missed while disconnected. */
  readonly settled?: SettledAsk;
}

/** The asks of a call; one answer settles those that were opened together. */
export interface AskGroup {
  /** The id of the first ask. */
  readonly id: string;
  /** The open asks, or those that have ended if none is open: what has ended is not what an answer is about. */
  readonly asks: readonly InboxAsk[];
  readonly open: readonly PermissionRequest[];
}

/** The asks that result from the frames of WatchPermissions. */
export interface AskList {
  /** Applies a frame; returns true if the list changed. */
  take(frame: WatchPermissionsResponse): boolean;
  /** Starts over: a new stream begins with its snapshot. */
  restart(): void;
  /** Removes a settled ask. */
  drop(id: string): void;
  has(id: string): boolean;
  /** Records the settlement of a known ask. */
  settle(settled: PermissionSettled): void;
  all(): readonly InboxAsk[];
}

/** Creates an empty list. */
export function createAskList(): AskList {
  let asks = new Map<string, InboxAsk>();
  /** The ids of the snapshot that is being received. */
  let snapshot: Set<string> | undefined = new Set();

  function settleMissing(present: ReadonlySet<string>): void {
    for (const [id, ask] of asks) {
      if (ask.settled === undefined && !present.has(id)) asks.set(id, { ...ask, settled: "unseen" });
    }
  }

  function settle(settled: PermissionSettled): void {
    const ask = asks.get(settled.permissionId);
    if (ask !== undefined) asks.set(ask.request.id, { ...ask, settled });
  }

  function alter(id: string, fields: Partial<Pick<PermissionRequest, "votes" | "escalations">>): void {
    const ask = asks.get(id);
    if (ask !== undefined) asks.set(id, { ...ask, request: { ...ask.request, ...fields } });
  }

  return {
    take({ event, snapshotEnd }) {
      const change = event?.event;
      if (change?.case === "permissionAsked") {
        const { id, votes, escalations } = change.value;
        snapshot?.add(id);
        if (!asks.has(id)) asks.set(id, { request: change.value });
        // A snapshot repeats requests that are known; votes and steps may have been missed.
        else alter(id, { votes, escalations });
      }
      if (change?.case === "permissionVoted") alter(change.value.permissionId, { votes: change.value.votes });
      if (change?.case === "permissionEscalated")
        alter(change.value.permissionId, { escalations: change.value.escalations });
      if (change?.case === "permissionSettled") settle(change.value);
      if (snapshotEnd && snapshot !== undefined) {
        settleMissing(snapshot);
        snapshot = undefined;
        return true;
      }
      return snapshot === undefined && change !== undefined;
    },
    restart() {
      snapshot = new Set();
    },
    drop(id) {
      // Replaces the map, because callers may still iterate over the old one.
      asks = new Map([...asks].filter(([known]) => known !== id));
    },
    has: (id) => asks.has(id),
    settle,
    all: () => [...asks.values()],
  };
}

/** Groups asks by call, oldest first. */
export function groupByCall(asks: readonly InboxAsk[]): readonly AskGroup[] {
  return [...Map.groupBy(asks, ({ request }) => callKeyOf(request)).values()].map((members) => {
    const open = members.filter(({ settled }) => settled === undefined);
    const shown = open.length > 0 ? open : members;
    return { id: shown[0]?.request.id ?? "", asks: shown, open: open.map(({ request }) => request) };
  });
}
