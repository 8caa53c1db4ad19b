import { type Client, Code } from "@connectrpc/connect";
import type {
  GetServerInfoResponse,
  ToolService,
  WatchManyResponse,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { whileVisible } from "../shell/visibility.ts";
import { final, followFrames } from "./follow.ts";

/** The one stream of a browser: its tabs watch on it together. */
export interface Stream {
  /** Watches until the signal, or to the end. */
  watch(watch: Watch, signal?: AbortSignal): Promise<void>;
  /** Whether this tab is the one that listens for all. */
  isLeader(): boolean;
  close(): void;
}

/** Something that a tab watches. */
export interface Watch {
  /** What to ask for, from where this tab is now. */
  want(): Want;
  onFrame(frame: Frame): void;
  /** What was told last may no longer be so; after "lost" there is a frame when it is so again, "refused" is for good. */
  onLoss?(how: "lost" | "refused"): void;
  /** It cannot go on from where it was; after this it is asked anew what it wants. */
  onGap?(): void;
}

type Want =
  | { case: "permissions"; value: object }
  | { case: "session"; value: { sessionId: string; callId?: string; afterSeq?: bigint; snapshot?: boolean } };
type Frame = WatchManyResponse["frame"];

/** What tabs say to each other. A leader has a new name each time, so that one that was frozen is not taken for the next. */
type Message =
  | { is: "leader"; leader: string }
  | { is: "wants"; tab: string; wants: [key: string, want: Want][] }
  | { is: "frame"; leader: string; key: string; frame: Frame }
  | { is: "loss"; leader: string; how: "lost" | "refused" };

/** All tabs watch the same asks; they are told of them as one. */
const asksKey = "asks";
/** The leader passes on every heartbeat of the service, so silence means that it is frozen. */
const silenceMs = 45_000;
/** After this long it is tried again what the service could not do just now. */
const retryMs = 5_000;
const gaps: readonly Code[] = [Code.OutOfRange, Code.DataLoss];

/**
 * Creates it. The tabs of a browser have six connections together, so the tab that holds a lock leads: it listens to what all
 * of them want, and passes it on; when that changes it opens the stream anew, each session after the last number that was
 * passed on. When it goes, or is frozen, the next one asks the tabs what they want. Where the browser has no locks (a page
 * that came without TLS from another machine) each tab listens for itself, while it is looked at.
 */
export function createStream(
  tools: Client<typeof ToolService>,
  { storeId, principal }: Pick<GetServerInfoResponse, "storeId" | "principal">,
): Stream {
  const name = `toolgate-${storeId}-${principal}`;
  const tab = newName();
  const { locks } = navigator;
  const channel = locks && new BroadcastChannel(name);
  const tell = (message: Message) => channel?.postMessage(message);
  const watches = new Map<string, Watch>();
  /** The leader's: what each tab wants, from where it was told last. */
  const wanted = new Map<string, Map<string, Want>>();
  const closed = new AbortController();
  let turn = new AbortController();
  let again = new AbortController();
  /** The leader whom this tab hears, and its own name as one. */
  let leader = "";
  let own = "";
  /** Whether the stream that is open was heard, and whether it is not what is wanted any more. */
  let isHeard = false;
  let isStale = false;
  let loss: "lost" | "refused" | undefined;
  let silence = 0;
  let isHere = channel === undefined;

  /** Says what this tab wants; not before it holds its own lock, or it would be taken for gone. */
  function say(): void {
    if (!isHere) return;
    const wants = [...watches].map(([key, watch]): [string, Want] => [key, watch.want()]);
    if (own === "") tell({ is: "wants", tab, wants });
    else take(tab, wants);
  }

  function take(from: string, wants: readonly [string, Want][]): void {
    const known = wanted.get(from);
    if (known === undefined && from !== tab) void forget(from);
    wanted.set(from, new Map(wants.map(([key, want]) => [key, known?.get(key) ?? want])));
    // A stream that is just being opened is left alone until it is heard: tabs speak up one after the other.
    if (isHeard) again.abort();
    isStale = true;
  }

  /** Every tab holds a lock of its own, so whoever gets it knows that the tab is gone. */
  async function forget(from: string): Promise<void> {
    const { signal } = turn;
    await locks
      .request(`${name} ${from}`, { signal }, () => {
        wanted.delete(from);
        if (!signal.aborted) again.abort();
      })
      .catch(() => undefined);
  }

  async function* open(signal: AbortSignal): AsyncGenerator<Frame> {
    isHeard = false;
    isStale = false;
    const current = again;
    const retry = () => current.abort();
    const all = [...wanted.values()].flatMap((wants) => [...wants]);
    const request = { watches: [...new Map(all)].map(([key, watch]) => ({ key, watch })) };
    for await (const { key, frame } of tools.watchMany(request, { signal, timeoutMs: 0 })) {
      if (signal.aborted) return;
      for (const wants of wanted.values()) advance(wants, key, frame);
      if (wanted.size > 1 && !key.startsWith(tab)) tell({ is: "frame", leader: own, key, frame });
      hear(key, frame);
      if (frame.case !== "end") yield frame;
      else if (!isOver(frame.value.code)) setTimeout(retry, retryMs);
    }
  }

  function hear(key: string, frame: Frame): void {
    const watch = watches.get(key);
    if (watch === undefined) return;
    if (frame.case !== "end") {
      watch.onFrame(frame);
      return;
    }
    const { code } = frame.value;
    if (!gaps.includes(code)) watch.onLoss?.(final.includes(code) ? "refused" : "lost");
    else if (watch.onGap !== undefined) {
      watch.onGap();
      say();
    }
  }

  function lose(how: "lost" | "refused"): void {
    for (const { onLoss } of watches.values()) onLoss?.(how);
  }

  async function listen(signal: AbortSignal): Promise<void> {
    own = newName();
    leader = own;
    clearTimeout(silence);
    wanted.clear();
    say();
    tell({ is: "leader", leader });
    do {
      again = new AbortController();
      await followFrames<Frame>(
        {
          open,
          onFrame() {
            isHeard = true;
            if (isStale) again.abort();
          },
          onLiveness(now) {
            loss = now === "lost" || now === "refused" ? now : undefined;
            if (loss === undefined) return;
            tell({ is: "loss", leader: own, how: loss });
            lose(loss);
          },
        },
        AbortSignal.any([signal, again.signal]),
      );
    } while (again.signal.aborted && !signal.aborted);
  }

  /** Waits for its turn to lead, or takes it. */
  async function lead({ steal = false } = {}): Promise<void> {
    turn.abort();
    turn = new AbortController();
    own = "";
    leader = "";
    const { signal } = turn;
    try {
      await locks.request(name, steal ? { steal } : { signal }, () => listen(signal));
    } catch {
      // Another tab took over, or this one was closed before it was its turn.
    }
    if (signal.aborted || loss === "refused") return;
    // One that was frozen may have missed who took over.
    hearSilence();
    void lead();
    say();
  }

  /** Takes over from a tab that the browser froze, if this one is looked at. */
  function hearSilence(): void {
    clearTimeout(silence);
    silence = window.setTimeout(() => {
      lose("lost");
      if (document.hidden) hearSilence();
      else void lead({ steal: true });
    }, silenceMs);
  }

  function onMessage({ data: message }: MessageEvent<Message>): void {
    if (message.is === "wants") {
      if (own === "") return;
      take(message.tab, message.wants);
      if (loss !== undefined) tell({ is: "loss", leader: own, how: loss });
      return;
    }
    if (message.is === "leader") {
      if (own !== "") void lead();
      leader = message.leader;
      hearSilence();
      say();
      return;
    }
    if (leader === "") leader = message.leader;
    if (leader !== message.leader) return;
    hearSilence();
    if (message.is === "frame") hear(message.key, message.frame);
    else lose(message.how);
  }

  function start(): void {
    if (channel === undefined) return void whileVisible(listen, closed.signal);
    channel.onmessage = onMessage;
    void locks.request(`${name} ${tab}`, async () => {
      isHere = true;
      hearSilence();
      void lead();
      say();
      await abortOf(closed.signal);
    });
  }

  let count = 0;
  return {
    isLeader: () => own !== "",
    async watch(watch, signal = closed.signal) {
      count += 1;
      const key = watch.want().case === "permissions" ? asksKey : `${tab} ${count}`;
      watches.set(key, watch);
      if (count === 1) start();
      else say();
      await abortOf(AbortSignal.any([signal, closed.signal]));
      watches.delete(key);
      if (!closed.signal.aborted) say();
    },
    close() {
      closed.abort();
      turn.abort();
      clearTimeout(silence);
      channel?.close();
    },
  };
}

function abortOf(signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener("abort", resolve);
  });
}

const newName = () => `${Math.random()}`;

const isOver = (code: Code) => final.includes(code) || gaps.includes(code);

/** Where a watch goes on when the stream is opened anew; what is over is not asked for again. */
function advance(wants: Map<string, Want>, key: string, frame: Frame): void {
  const want = wants.get(key);
  if (want === undefined) return;
  if (frame.case === "end" && isOver(frame.value.code)) wants.delete(key);
  if (frame.case !== "session" || want.case !== "session" || (want.value.snapshot && !frame.value.snapshotEnd)) return;
  wants.set(key, { case: "session", value: { ...want.value, snapshot: false, afterSeq: frame.value.lastSeq } });
}
