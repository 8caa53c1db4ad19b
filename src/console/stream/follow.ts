import { Code, ConnectError } from "@connectrpc/connect";

/** Whether what one sees is what is: first "connecting", then "live" or "lost"; "refused" is for good. */
export type Liveness = "connecting" | "live" | "lost" | "refused";

/** A stream that is to stay open. */
export interface FollowOptions<F> {
  open(signal: AbortSignal): AsyncIterable<F>;
  onFrame(frame: F): void;
  onLiveness(liveness: Liveness): void;
}

/** Longer than two heartbeats of the service: a stream that says nothing for so long is dead, whatever the browser thinks. */
const silenceMs = 40_000;
const maxPauseMs = 8_000;

/** Reads a stream and opens it again whenever it breaks, until the signal or until the service refuses it. */
export async function followFrames<F>(
  { open, onFrame, onLiveness }: FollowOptions<F>,
  signal: AbortSignal,
): Promise<void> {
  let pauseMs = 250;
  while (!signal.aborted) {
    const silence = new AbortController();
    const give = () => silence.abort();
    let timer = setTimeout(give, silenceMs);
    try {
      for await (const frame of open(AbortSignal.any([signal, silence.signal]))) {
        clearTimeout(timer);
        timer = setTimeout(give, silenceMs);
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

/** What is no better when it is asked again. */
export const final: readonly Code[] = [
  Code.NotFound,
  Code.PermissionDenied,
  Code.Unauthenticated,
  Code.InvalidArgument,
];

/** Ends early when the network is back or somebody looks again. */
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
