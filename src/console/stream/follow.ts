import { Code, ConnectError } from "@connectrpc/connect";
import type { WatchManyResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";

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
export function pause(ms: number, signal: AbortSignal): Promise<void> {
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

/** A subscription of a tab. */
export interface Watch {
  /** The subscription as the service takes it, from the position of this tab. */
  want(): Want;
  onFrame(frame: StreamFrame): void;
  /** The last frames may be outdated. After "lost" a frame follows once the stream is live again; "refused" is final. */
  onLoss?(how: "lost" | "refused"): void;
  /** The stream cannot continue at this tab's position; afterwards `want` is called again. */
  onGap?(): void;
}

/** A subscription as a request holds it. */
export type Want =
  | { case: "permissions"; value: object }
  | { case: "session"; value: { sessionId: string; callId?: string; afterSeq?: bigint; snapshot?: boolean } };

/** A frame of the shared stream. */
export type StreamFrame = WatchManyResponse["frame"];

/** The key of the asks, which all tabs watch with one subscription. */
export const asksKey = "asks";

/** Returns true after an error that means that frames were lost: the watch has to start from a snapshot. */
export function isGap(code: Code): boolean {
  return code === Code.OutOfRange || code === Code.DataLoss;
}

/** Returns true if a subscription that ended with this code must not be requested again as it was. */
export function isOver(code: Code): boolean {
  return final.includes(code) || isGap(code);
}

/** Moves a subscription behind a frame that was delivered, so that a new stream continues there; removes one that is over. */
export function advanceWant(wants: Map<string, Want>, key: string, frame: StreamFrame): void {
  const want = wants.get(key);
  if (want === undefined) return;
  if (frame.case === "end" && isOver(frame.value.code)) wants.delete(key);
  if (frame.case !== "session" || want.case !== "session" || (want.value.snapshot && !frame.value.snapshotEnd)) return;
  wants.set(key, { case: "session", value: { ...want.value, snapshot: false, afterSeq: frame.value.lastSeq } });
}
