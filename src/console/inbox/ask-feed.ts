import { type ReadonlySignal, signal } from "@preact/signals";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { farewellMs } from "../../view/asks.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Liveness } from "../stream/follow.ts";
import { createAskList, type InboxAsk } from "./ask-list.ts";

/** The asks of all sessions, live. */
export interface AskFeed {
  readonly asks: ReadonlySignal<readonly InboxAsk[]>;
  readonly liveness: ReadonlySignal<Liveness>;
  /** Told, in one tab of the browser, of each ask that is opened or that was while the connection was away. */
  onNew(listener: (ask: PermissionRequest) => void): void;
}

const firstScreen = 30;

/** Listens for asks as long as the page is open, also while nobody looks. */
export function createAskFeed({ stream, permissions }: Pick<ConsoleConnection, "stream" | "permissions">): AskFeed {
  const list = createAskList();
  const asks = signal<readonly InboxAsk[]>([]);
  const liveness = signal<Liveness>("connecting");
  const listeners: ((ask: PermissionRequest) => void)[] = [];
  /** Before its beginning a snapshot means nothing: this tab may have come in the middle of one. */
  let isBegun = false;
  let isWhole = false;

  function show(): void {
    asks.value = list.all();
    for (const { request, settled } of asks.value) if (settled !== undefined) sayFarewell(request.id);
  }

  const leaving = new Set<string>();
  function sayFarewell(id: string): void {
    if (leaving.has(id)) return;
    leaving.add(id);
    setTimeout(() => {
      leaving.delete(id);
      list.drop(id);
      asks.value = list.all();
    }, farewellMs);
  }

  function tellUnseen(): void {
    const unseen = asks.value.flatMap(({ request, settled }) => (settled === "unseen" ? request.sessionId : []));
    for (const sessionId of new Set(unseen)) readSettled(sessionId).catch(() => undefined);
  }

  /** The record says how an ask ended while the connection was away. */
  async function readSettled(sessionId: string): Promise<void> {
    for (let afterSeq = 0n; ; ) {
      const { entries } = await permissions.listDecisions({ sessionId, afterSeq, pageSize: 500 });
      for (const { record } of entries) if (record?.settled !== undefined) list.settle(record.settled);
      asks.value = list.all();
      const last = entries.at(-1);
      if (last === undefined) return;
      afterSeq = last.seq;
    }
  }

  function take(frame: WatchPermissionsResponse): void {
    // The first message of a stream names the store.
    if (frame.storeId !== "") list.restart();
    isBegun ||= frame.storeId !== "";
    if (!isBegun) return;
    liveness.value = "live";
    const told = frame.event?.event;
    const isNew = isWhole && told?.case === "permissionAsked" && !list.has(told.value.id);
    // The first screen is shown as it comes in, not when the last of a thousand asks is there.
    if (list.take(frame) || (told !== undefined && asks.value.length < firstScreen)) show();
    if (frame.snapshotEnd) tellUnseen();
    isWhole ||= frame.snapshotEnd;
    if (isNew && stream.isLeader()) for (const listener of listeners) listener(told.value);
  }

  void stream.watch({
    want: () => ({ case: "permissions", value: {} }),
    onFrame(frame) {
      if (frame.case === "permissions") take(frame.value);
    },
    onLoss(how) {
      liveness.value = how;
    },
  });

  return {
    asks,
    liveness,
    onNew: (listener) => void listeners.push(listener),
  };
}
