import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { type GetServerInfoResponse, ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { whileVisible } from "../shell/visibility.ts";
import {
  advanceWant,
  asksKey,
  final,
  followFrames,
  heartbeatMs,
  isGap,
  isOver,
  type StreamFrame,
  type Want,
  type Watch,
} from "./follow.ts";

/** An authenticated connection to the service that serves this page. */
export interface ConsoleConnection {
  readonly tools: Client<typeof ToolService>;
  readonly permissions: Client<typeof PermissionService>;
  readonly sessions: Client<typeof SessionService>;
  readonly credentials: Client<typeof CredentialService>;
  readonly sources: Client<typeof SourceService>;
  /** For the services that a page calls once it is shown. */
  readonly transport: Transport;
  /** The service's description, with the principal and roles of this connection. */
  readonly server: GetServerInfoResponse;
  /** The shared stream of live events. */
  readonly stream: Stream;
  /** Returns true if the principal has one of these roles. The service enforces them; the page only hides what it would refuse. */
  may(...roles: readonly string[]): boolean;
}

/** Proof of a sign-in: a token, or this page's half of a token whose other half is in a cookie that no script can read. */
export type SignInProof = { token: string } | { pageKey: string };

/** The header that carries the proof; none if there is no proof. */
export function proofHeader(proof: SignInProof | undefined): [name: string, value: string][] {
  if (proof === undefined) return [];
  return "token" in proof ? [["authorization", `Bearer ${proof.token}`]] : [["toolgate-page-key", proof.pageKey]];
}

/** Connects with a sign-in, or without one; rejects if the service refuses it. */
export async function connectConsole(proof: SignInProof | undefined): Promise<ConsoleConnection> {
  const transport = createConnectTransport({
    baseUrl: location.origin,
    useBinaryFormat: true,
    interceptors: [
      (next) => (request) => {
        for (const [name, value] of proofHeader(proof)) request.header.set(name, value);
        return next(request);
      },
    ],
  });
  const tools = createClient(ToolService, transport);
  const server = await tools.getServerInfo({});
  return {
    tools,
    permissions: createClient(PermissionService, transport),
    sessions: createClient(SessionService, transport),
    credentials: createClient(CredentialService, transport),
    sources: createClient(SourceService, transport),
    ...{ server, transport },
    stream: createStream(tools, server),
    may: (...roles) => roles.some((role) => server.roles.includes(role)),
  };
}

/** The one stream of a browser, shared by its tabs. */
interface Stream {
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
function createStream(
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

/** The leader passes on every heartbeat of the service, so a longer silence means that it is frozen. */
const silenceMs = 10_000;
/** The pause before a subscription that failed for now is requested again. */
const retryMs = 5_000;

/** Waits until this tab leads, or takes the lead at once with `steal`; then listens for all tabs. */
async function lead(state: TabState, { steal = false } = {}): Promise<void> {
  state.turn.abort();
  state.turn = new AbortController();
  state.own = "";
  state.leader = "";
  const { signal } = state.turn;
  try {
    await navigator.locks.request(state.name, steal ? { steal } : { signal }, () => listen(state, signal));
  } catch {
    // Another tab took over, or this one was closed before its turn.
  }
  if (signal.aborted || state.loss === "refused") return;
  // A tab that was frozen may have missed the new leader's announcement.
  expectLeader(state);
  void lead(state);
  announceWants(state);
}

/** Restarts the timer after which this tab, if it is visible, takes over from a leader that the browser froze. */
function expectLeader(state: TabState): void {
  clearTimeout(state.silence);
  state.silence = window.setTimeout(() => {
    reportLoss(state, "lost");
    if (document.hidden) expectLeader(state);
    else void lead(state, { steal: true });
  }, silenceMs);
}

/** Listens as the leader: opens the stream again whenever it breaks or the subscriptions change. */
async function listen(state: TabState, signal: AbortSignal): Promise<void> {
  state.own = newName();
  state.leader = state.own;
  clearTimeout(state.silence);
  state.wanted.clear();
  announceWants(state);
  post(state, { is: "leader", leader: state.leader });
  do {
    state.again = new AbortController();
    await followFrames<StreamFrame>(
      {
        open: (opened) => openStream(state, opened),
        onFrame() {
          state.isLive = true;
          if (state.isStale) state.again.abort();
        },
        onLiveness(now) {
          state.loss = now === "lost" || now === "refused" ? now : undefined;
          if (state.loss === undefined) return;
          post(state, { is: "loss", leader: state.own, how: state.loss });
          reportLoss(state, state.loss);
        },
      },
      AbortSignal.any([signal, state.again.signal]),
    );
  } while (state.again.signal.aborted && !signal.aborted);
}

/** Opens the stream with the subscriptions of all tabs and passes its frames on. */
async function* openStream(state: TabState, signal: AbortSignal): AsyncGenerator<StreamFrame> {
  const { tools, wanted, again, tab } = state;
  state.isLive = false;
  state.isStale = false;
  const all = [...wanted.values()].flatMap((wants) => [...wants]);
  const request = { heartbeatMs, watches: [...new Map(all)].map(([key, watch]) => ({ key, watch })) };
  for await (const { key, frame } of tools.watchMany(request, { signal, timeoutMs: 0 })) {
    if (signal.aborted) return;
    for (const wants of wanted.values()) advanceWant(wants, key, frame);
    if (wanted.size > 1 && !key.startsWith(tab)) post(state, { is: "frame", leader: state.own, key, frame });
    deliver(state, key, frame);
    if (frame.case !== "end") yield frame;
    else if (!isOver(frame.value.code)) setTimeout(() => again.abort(), retryMs);
  }
}

/** The messages between the tabs of a browser. */
type TabMessage =
  | { is: "leader"; leader: string }
  | { is: "wants"; tab: string; wants: [key: string, want: Want][] }
  | { is: "frame"; leader: string; key: string; frame: StreamFrame }
  | { is: "loss"; leader: string; how: "lost" | "refused" };

/** The state of the shared stream in one tab. */
interface TabState {
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
function newName(): string {
  return `${Math.random()}`;
}

/** The name of the lock that a tab holds as long as it exists. */
function presenceLock({ name }: TabState, tab: string): string {
  return `${name} ${tab}`;
}

/** Sends a message to the other tabs. */
function post({ channel }: TabState, message: TabMessage): void {
  channel?.postMessage(message);
}

/** Announces the subscriptions of this tab. Before the tab holds its own lock, the leader would take it for gone. */
function announceWants(state: TabState): void {
  if (!state.isPresent) return;
  const { tab } = state;
  const wants = [...state.watches].map(([key, watch]): [string, Want] => [key, watch.want()]);
  if (state.own === "") post(state, { is: "wants", tab, wants });
  else acceptWants(state, tab, wants);
}

/** Stores the subscriptions of a tab (leader only) and opens the stream again with them. */
function acceptWants(state: TabState, from: string, wants: readonly [string, Want][]): void {
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
function deliver(state: TabState, key: string, frame: StreamFrame): void {
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
function reportLoss({ watches }: TabState, how: "lost" | "refused"): void {
  for (const { onLoss } of watches.values()) onLoss?.(how);
}
