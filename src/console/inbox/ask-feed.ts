import { type ReadonlySignal, signal } from "@preact/signals";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { farewellMs } from "../../view/asks.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Liveness } from "../stream/follow.ts";
import type { AnswerDraft } from "./answer-fields.tsx";
import { createAskList, type InboxAsk } from "./ask-list.ts";

/** The live asks of all sessions. */
export interface AskFeed {
  readonly asks: ReadonlySignal<readonly InboxAsk[]>;
  readonly liveness: ReadonlySignal<Liveness>;
  /** Answers to open questions that are not sent yet, by the ID of the request: they outlive a look at another page. */
  readonly drafts: Map<string, readonly AnswerDraft[]>;
  /** Called in one tab of the browser for each new ask, including those opened while it was disconnected. */
  onNew(listener: (ask: PermissionRequest) => void): void;
}

const firstScreen = 30;

/** Settlements that are read after a break; a break of a night has ended thousands of asks. */
const maxResolved = 20;

/** Subscribes to asks as long as the page is open, even while it is hidden. */
export function createAskFeed({ stream, permissions }: Pick<ConsoleConnection, "stream" | "permissions">): AskFeed {
  const list = createAskList();
  const asks = signal<readonly InboxAsk[]>([]);
  const liveness = signal<Liveness>("connecting");
  const drafts: AskFeed["drafts"] = new Map();
  const listeners: ((ask: PermissionRequest) => void)[] = [];
  /** False until a snapshot starts: this tab may have joined in the middle of one. */
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
      drafts.delete(id);
      asks.value = list.all();
    }, farewellMs);
  }

  /** Reads the settlements that were missed while disconnected, as long as their asks are shown. */
  async function resolveUnseen(): Promise<void> {
    const signal = AbortSignal.timeout(farewellMs);
    const unseen = asks.value.filter(({ settled }) => settled === "unseen");
    for (const { request } of unseen.slice(0, maxResolved)) {
      const { settled } = await permissions.getPermission({ permissionId: request.id }, { signal });
      if (settled !== undefined) list.settle(settled);
      asks.value = list.all();
    }
  }

  function take(frame: WatchPermissionsResponse): void {
    // The first frame of a stream carries the store id.
    if (frame.storeId !== "") list.restart();
    isBegun ||= frame.storeId !== "";
    if (!isBegun) return;
    liveness.value = "live";
    const change = frame.event?.event;
    const isNew = isWhole && change?.case === "permissionAsked" && !list.has(change.value.id);
    // Shows the first screenful as it arrives, before a snapshot of a thousand asks is complete.
    if (list.take(frame) || (change !== undefined && asks.value.length < firstScreen)) show();
    if (frame.snapshotEnd) resolveUnseen().catch(() => undefined);
    isWhole ||= frame.snapshotEnd;
    if (isNew && stream.isLeader()) for (const listener of listeners) listener(change.value);
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
    drafts,
    onNew: (listener) => void listeners.push(listener),
  };
}
