import { followFrames, heartbeatMs } from "./follow.ts";
import { announceWants, deliver, newName, post, reportLoss, type TabState } from "./tabs.ts";
import { advanceWant, isOver, type StreamFrame } from "./watch.ts";

/** The leader passes on every heartbeat of the service, so a longer silence means that it is frozen. */
const silenceMs = 10_000;
/** The pause before a subscription that failed for now is requested again. */
const retryMs = 5_000;

/** Waits until this tab leads, or takes the lead at once with `steal`; then listens for all tabs. */
export async function lead(state: TabState, { steal = false } = {}): Promise<void> {
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
export function expectLeader(state: TabState): void {
  clearTimeout(state.silence);
  state.silence = window.setTimeout(() => {
    reportLoss(state, "lost");
    if (document.hidden) expectLeader(state);
    else void lead(state, { steal: true });
  }, silenceMs);
}

/** Listens as the leader: opens the stream again whenever it breaks or the subscriptions change. */
export async function listen(state: TabState, signal: AbortSignal): Promise<void> {
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
