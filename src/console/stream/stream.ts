import type { Client } from "@connectrpc/connect";
import type { GetServerInfoResponse, ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { whileVisible } from "../shell/visibility.ts";
import { expectLeader, lead, listen } from "./leader.ts";
import {
  acceptWants,
  announceWants,
  deliver,
  newName,
  post,
  presenceLock,
  reportLoss,
  type TabMessage,
  type TabState,
} from "./tabs.ts";
import { asksKey, type Watch } from "./watch.ts";

/** The one stream of a browser, shared by its tabs. */
export interface Stream {
  /** Watches until the signal aborts or the stream is closed. */
  watch(watch: Watch, signal?: AbortSignal): Promise<void>;
  /** Returns true if this tab listens for all tabs. */
  isLeader(): boolean;
  close(): void;
}

/**
 * Creates the stream. All tabs of a browser have six connections together, so one tab leads, which is the tab that holds a
 * lock: it subscribes for all tabs and passes the frames on. When the subscriptions change it opens the stream again, each
 * session after the last event that was passed on. When it closes or freezes, the next leader asks the tabs for their
 * subscriptions. Where the browser has no locks (a page without TLS from another machine) each visible tab listens for itself.
 */
export function createStream(
  tools: Client<typeof ToolService>,
  { storeId, principal }: Pick<GetServerInfoResponse, "storeId" | "principal">,
): Stream {
  const state = createTabState(tools, `toolgate-${storeId}-${principal}`);
  const { closed, watches, tab } = state;
  let count = 0;
  return {
    isLeader: () => state.own !== "",
    async watch(watch, signal = closed.signal) {
      count += 1;
      const key = watch.want().case === "permissions" ? asksKey : `${tab} ${count}`;
      watches.set(key, watch);
      if (count === 1) start(state);
      else announceWants(state);
      await abortOf(AbortSignal.any([signal, closed.signal]));
      watches.delete(key);
      if (!closed.signal.aborted) announceWants(state);
    },
    close() {
      closed.abort();
      state.turn.abort();
      clearTimeout(state.silence);
      state.channel?.close();
    },
  };
}

function createTabState(tools: Client<typeof ToolService>, name: string): TabState {
  // A page without TLS from another machine has no locks.
  const channel = navigator.locks ? new BroadcastChannel(name) : undefined;
  return {
    tools,
    name,
    tab: newName(),
    channel,
    watches: new Map(),
    wanted: new Map(),
    closed: new AbortController(),
    turn: new AbortController(),
    again: new AbortController(),
    leader: "",
    own: "",
    isLive: false,
    isStale: false,
    loss: undefined,
    silence: 0,
    isPresent: channel === undefined,
  };
}

/** Joins the tabs of this browser: holds the lock of this tab and queues for the lead. */
function start(state: TabState): void {
  const { channel, closed, tab } = state;
  if (channel === undefined) return void whileVisible((signal) => listen(state, signal), closed.signal);
  channel.onmessage = ({ data }: MessageEvent<TabMessage>) => onMessage(state, data);
  void navigator.locks.request(presenceLock(state, tab), async () => {
    state.isPresent = true;
    expectLeader(state);
    void lead(state);
    announceWants(state);
    await abortOf(closed.signal);
  });
}

/** Handles a message of another tab; those of a former leader are ignored. */
function onMessage(state: TabState, message: TabMessage): void {
  if (message.is === "wants") {
    if (state.own === "") return;
    acceptWants(state, message.tab, message.wants);
    if (state.loss !== undefined) post(state, { is: "loss", leader: state.own, how: state.loss });
    return;
  }
  if (message.is === "leader") {
    if (state.own !== "") void lead(state);
    state.leader = message.leader;
    expectLeader(state);
    announceWants(state);
    return;
  }
  if (state.leader === "") state.leader = message.leader;
  if (state.leader !== message.leader) return;
  expectLeader(state);
  if (message.is === "frame") deliver(state, message.key, message.frame);
  else reportLoss(state, message.how);
}

function abortOf(signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener("abort", resolve);
  });
}
