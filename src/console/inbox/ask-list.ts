import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { callKeyOf } from "../../view/asks.ts";
import type { SettledAsk } from "../parts/settled.ts";

/** An ask as the console knows it. */
export interface InboxAsk {
  readonly request: PermissionRequest;
  /** How it ended; "unseen" if that happened while nobody listened. It stays for a moment, so that people see it. */
  readonly settled?: SettledAsk;
}

/** The asks of a call, which are answered together. */
export interface AskGroup {
  /** The id of its first ask. */
  readonly id: string;
  readonly asks: readonly InboxAsk[];
  readonly open: readonly PermissionRequest[];
}

/** What the frames of WatchPermissions add up to. */
export interface AskList {
  /** Takes a frame; returns whether there is something new to show. */
  take(frame: WatchPermissionsResponse): boolean;
  /** A stream begins anew, with its snapshot. */
  restart(): void;
  /** Forgets a settled ask. */
  drop(id: string): void;
  has(id: string): boolean;
  /** Says how a known ask ended. */
  settle(settled: PermissionSettled): void;
  all(): readonly InboxAsk[];
}

/** Creates an empty one. */
export function createAskList(): AskList {
  let asks = new Map<string, InboxAsk>();
  /** The asks of the snapshot that is being read. */
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

  return {
    take({ event, snapshotEnd }) {
      const told = event?.event;
      if (told?.case === "permissionAsked") {
        const { id } = told.value;
        snapshot?.add(id);
        if (!asks.has(id)) asks.set(id, { request: told.value });
      }
      if (told?.case === "permissionSettled") settle(told.value);
      if (snapshotEnd && snapshot !== undefined) {
        settleMissing(snapshot);
        snapshot = undefined;
        return true;
      }
      return snapshot === undefined && told !== undefined;
    },
    restart() {
      snapshot = new Set();
    },
    drop(id) {
      // A new map, so that who holds the old list is not surprised.
      asks = new Map([...asks].filter(([known]) => known !== id));
    },
    has: (id) => asks.has(id),
    settle,
    all: () => [...asks.values()],
  };
}

/** Groups asks by their call, in the order in which they were asked. */
export function groupByCall(asks: readonly InboxAsk[]): readonly AskGroup[] {
  const groups = new Map<string, InboxAsk[]>();
  for (const ask of asks) {
    const key = callKeyOf(ask.request);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [ask]);
    else group.push(ask);
  }
  return [...groups.values()].map((members) => ({
    id: members[0]?.request.id ?? "",
    asks: members,
    open: members.filter(({ settled }) => settled === undefined).map(({ request }) => request),
  }));
}
