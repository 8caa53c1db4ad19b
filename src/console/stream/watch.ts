import { Code } from "@connectrpc/connect";
import type { WatchManyResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { final } from "./follow.ts";

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
