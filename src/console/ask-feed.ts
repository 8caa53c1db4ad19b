import { type ReadonlySignal, signal } from "@preact/signals";
import type { WatchPermissionsResponse } from "../../gen/web/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../gen/web/opencode/tool/v1/tool_pb.ts";
import { type Ask, createAskList } from "./ask-list.ts";
import type { Connection } from "./connection.ts";
import { follow, type Liveness } from "./follow.ts";

/** The asks of all sessions, live. */
export interface AskFeed {
  readonly asks: ReadonlySignal<readonly Ask[]>;
  readonly liveness: ReadonlySignal<Liveness>;
  /** Told of each ask that was opened while this tab is the one that listens for all. */
  onNew(listener: (ask: PermissionRequest) => void): void;
  close(): void;
}

type Message =
  | { is: "hello" }
  | { is: "state"; open: PermissionRequest[]; liveness: Liveness }
  | { is: "frame"; frame: WatchPermissionsResponse }
  | { is: "liveness"; liveness: Liveness };

/** How long a settled ask stays in sight. */
const farewellMs = 4_000;
const firstScreen = 30;
/** The listening tab passes on every heartbeat of the service, so silence means that it is frozen. */
const silenceMs = 45_000;

/**
 * Listens for asks. The tabs of a browser have six connections together, so one tab, which holds a lock, listens and tells
 * the others; when it goes, the next one takes over. Where the browser has no locks (a page that came without TLS from
 * another machine) each tab listens for itself, while it is looked at.
 */
export function createAskFeed({ permissions, server }: Connection): AskFeed {
  const list = createAskList();
  const asks = signal<readonly Ask[]>([]);
  const liveness = signal<Liveness>("connecting");
  const listeners: ((ask: PermissionRequest) => void)[] = [];
  const closed = new AbortController();
  const name = `toolgate-asks-${server.storeId}-${server.principal}`;
  const channel = new BroadcastChannel(name);
  const tell = (message: Message) => channel.postMessage(message);
  let listening = false;
  let silence = 0;

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

  function setLiveness(now: Liveness): void {
    if (now !== liveness.value && listening) tell({ is: "liveness", liveness: now });
    liveness.value = now;
  }

  let fresh = false;
  function take(frame: WatchPermissionsResponse): void {
    // The first screen is shown as it comes in, not when the last of a thousand asks is there.
    if (list.take(frame) || (frame.event !== undefined && asks.value.length < firstScreen)) show();
    if (frame.snapshotEnd) {
      fresh = true;
      if (listening) tell({ is: "state", open: list.open(), liveness: "live" });
      return;
    }
    if (!listening || !fresh) return;
    tell({ is: "frame", frame });
    const told = frame.event?.event;
    if (told?.case === "permissionAsked") for (const listener of listeners) listener(told.value);
  }

  const listen = (signal: AbortSignal) =>
    follow<WatchPermissionsResponse>(
      {
        open(streamSignal) {
          list.restart();
          fresh = false;
          return permissions.watchPermissions({}, { signal: streamSignal, timeoutMs: 0 });
        },
        onFrame: take,
        onLiveness: setLiveness,
      },
      signal,
    );

  channel.onmessage = ({ data: message }: MessageEvent<Message>) => {
    if (message.is === "hello") {
      if (listening && fresh) tell({ is: "state", open: list.open(), liveness: liveness.value });
      return;
    }
    if (listening) return;
    hearSilence();
    if (message.is === "frame") take(message.frame);
    if (message.is === "frame") liveness.value = "live";
    else liveness.value = message.liveness;
    if (message.is !== "state") return;
    list.replace(message.open);
    show();
  };

  /** Takes over from a tab that the browser froze, if this one is looked at. */
  function hearSilence(): void {
    clearTimeout(silence);
    silence = window.setTimeout(() => {
      liveness.value = "lost";
      if (document.hidden) hearSilence();
      else void lead({ steal: true });
    }, silenceMs);
  }

  async function lead(how: LockOptions): Promise<void> {
    const stolen = new AbortController();
    const signal = AbortSignal.any([closed.signal, stolen.signal]);
    try {
      await navigator.locks.request(name, how, async () => {
        listening = true;
        clearTimeout(silence);
        await listen(signal);
      });
    } catch {
      // Another tab took over, or this one was closed before it was its turn.
    }
    stolen.abort();
    listening = false;
    if (closed.signal.aborted || liveness.value === "refused") return;
    hearSilence();
    void lead({ signal: closed.signal });
  }

  if (navigator.locks === undefined) void whileVisible(listen, closed.signal);
  else {
    tell({ is: "hello" });
    hearSilence();
    void lead({ signal: closed.signal });
  }

  return {
    asks,
    liveness,
    onNew: (listener) => void listeners.push(listener),
    close() {
      closed.abort();
      clearTimeout(silence);
      channel.close();
    },
  };
}

/** Runs work while the page is looked at, and ends it while it is not. */
export async function whileVisible(work: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const hidden = new AbortController();
    const check = () => {
      if (document.hidden) hidden.abort();
    };
    document.addEventListener("visibilitychange", check, { signal });
    await untilVisible(signal);
    await work(AbortSignal.any([signal, hidden.signal]));
    document.removeEventListener("visibilitychange", check);
    if (!hidden.signal.aborted) return;
  }
}

function untilVisible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (!document.hidden || signal.aborted) return resolve();
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}
