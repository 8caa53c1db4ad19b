import type { Client } from "@connectrpc/connect";
import type { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { final } from "./follow.ts";
import { isGap, type StreamFrame, type Want, type Watch } from "./watch.ts";

/** The messages between the tabs of a browser. */
export type TabMessage =
  | { is: "leader"; leader: string }
  | { is: "wants"; tab: string; wants: [key: string, want: Want][] }
  | { is: "frame"; leader: string; key: string; frame: StreamFrame }
  | { is: "loss"; leader: string; how: "lost" | "refused" };

/** The state of the shared stream in one tab. */
export interface TabState {
  readonly tools: Client<typeof ToolService>;
  /** The name of the lock and of the channel: one for each service and principal. */
  readonly name: string;
  readonly tab: string;
  /** Absent where the browser has no locks; then each tab listens for itself. */
  readonly channel: BroadcastChannel | undefined;
  readonly watches: Map<string, Watch>;
  /** The subscriptions of each tab, from the last frame that was passed on; only the leader's table is used. */
  readonly wanted: Map<string, Map<string, Want>>;
  readonly closed: AbortController;
  /** Ends the current attempt to lead. */
  turn: AbortController;
  /** Opens the stream again with other subscriptions. */
  again: AbortController;
  /** The leader that this tab follows; empty if unknown. */
  leader: string;
  /** This tab's name as a leader; empty while another tab leads. A leader takes a new name each time, so that a tab that was
   * frozen is not taken for its successor. */
  own: string;
  /** A frame of the open stream has arrived. */
  isLive: boolean;
  /** The subscriptions have changed since the stream was opened. */
  isStale: boolean;
  loss: "lost" | "refused" | undefined;
  /** The timer that runs out when the leader is silent. */
  silence: number;
  /** This tab holds its own lock. */
  isPresent: boolean;
}

/** Returns a name that no other tab has. */
export function newName(): string {
  return `${Math.random()}`;
}

/** The name of the lock that a tab holds as long as it exists. */
export function presenceLock({ name }: TabState, tab: string): string {
  return `${name} ${tab}`;
}

/** Sends a message to the other tabs. */
export function post({ channel }: TabState, message: TabMessage): void {
  channel?.postMessage(message);
}

/** Announces the subscriptions of this tab. Before the tab holds its own lock, the leader would take it for gone. */
export function announceWants(state: TabState): void {
  if (!state.isPresent) return;
  const { tab } = state;
  const wants = [...state.watches].map(([key, watch]): [string, Want] => [key, watch.want()]);
  if (state.own === "") post(state, { is: "wants", tab, wants });
  else acceptWants(state, tab, wants);
}

/** Stores the subscriptions of a tab (leader only) and opens the stream again with them. */
export function acceptWants(state: TabState, from: string, wants: readonly [string, Want][]): void {
  const { wanted, again, tab } = state;
  const known = wanted.get(from);
  if (known === undefined && from !== tab) void forgetWhenGone(state, from);
  wanted.set(from, new Map(wants.map(([key, want]) => [key, known?.get(key) ?? want])));
  // A stream that is being opened continues until its first frame: tabs announce themselves one after the other.
  if (state.isLive) again.abort();
  state.isStale = true;
}

/** Waits for the lock of another tab, which is free once that tab is gone, and removes its subscriptions. */
async function forgetWhenGone(state: TabState, from: string): Promise<void> {
  const { signal } = state.turn;
  await navigator.locks
    .request(presenceLock(state, from), { signal }, () => {
      state.wanted.delete(from);
      if (!signal.aborted) state.again.abort();
    })
    .catch(() => undefined);
}

/** Delivers a frame to the watch of this tab with that key, if there is one. */
export function deliver(state: TabState, key: string, frame: StreamFrame): void {
  const watch = state.watches.get(key);
  if (watch === undefined) return;
  if (frame.case !== "end") {
    watch.onFrame(frame);
    return;
  }
  const { code } = frame.value;
  if (!isGap(code)) watch.onLoss?.(final.includes(code) ? "refused" : "lost");
  else if (watch.onGap !== undefined) {
    watch.onGap();
    announceWants(state);
  }
}

/** Reports to every watch of this tab that the stream is not live. */
export function reportLoss({ watches }: TabState, how: "lost" | "refused"): void {
  for (const { onLoss } of watches.values()) onLoss?.(how);
}
