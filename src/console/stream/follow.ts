import { Code, ConnectError } from "@connectrpc/connect";

/** The state of a stream: first "connecting", then "live" or "lost"; "refused" is final. */
export type Liveness = "connecting" | "live" | "lost" | "refused";

/** A stream to keep open. */
export interface FollowOptions<F> {
  open(signal: AbortSignal): AsyncIterable<F>;
  onFrame(frame: F): void;
  onLiveness(liveness: Liveness): void;
}

/** The interval of heartbeats that the page asks for. */
export const heartbeatMs = 3_000;
/** A stream that misses two heartbeats is dead, even if the browser reports no broken connection. */
const silenceMs = 8_000;
const maxPauseMs = 8_000;

/** Reads a stream and reopens it whenever it breaks, until the signal aborts or the service refuses it. */
export async function followFrames<F>(
  { open, onFrame, onLiveness }: FollowOptions<F>,
  signal: AbortSignal,
): Promise<void> {
  let pauseMs = 250;
  while (!signal.aborted) {
    const silence = new AbortController();
    const abandon = () => silence.abort();
    let timer = setTimeout(abandon, silenceMs);
    try {
      for await (const frame of open(AbortSignal.any([signal, silence.signal]))) {
        clearTimeout(timer);
        timer = setTimeout(abandon, silenceMs);
        pauseMs = 250;
        onLiveness("live");
        onFrame(frame);
      }
    } catch (cause) {
      if (signal.aborted) return;
      if (final.includes(ConnectError.from(cause).code)) return onLiveness("refused");
    } finally {
      clearTimeout(timer);
    }
    if (signal.aborted) return;
    onLiveness("lost");
    await pause(pauseMs, signal);
    pauseMs = Math.min(2 * pauseMs, maxPauseMs);
  }
}

/** Error codes that a retry does not change. */
export const final: readonly Code[] = [
  Code.NotFound,
  Code.PermissionDenied,
  Code.Unauthenticated,
  Code.InvalidArgument,
];

/** Waits; ends early when the network is back or the page becomes visible. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = new AbortController();
    const end = () => {
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end, { signal: over.signal });
    document.addEventListener("visibilitychange", end, { signal: over.signal });
    signal.addEventListener("abort", end, { signal: over.signal });
  });
}
