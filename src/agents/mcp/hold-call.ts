import { setTimeout as sleep } from "node:timers/promises";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isUnreachable } from "../../client/resume-stream.ts";
import { untilAborted } from "../../core/within.ts";
import { isLostConnection } from "./toolgate-api.ts";

/** A call as it was seen last. */
export interface McpCallView {
  readonly part: ToolPart;
  /** Permission requests that it waits for. */
  readonly permissions: readonly PermissionRequest[];
}

/** Returns the call when it has ended, or as it is after a time. */
export type LookAtCall = (waitMs: number, signal?: AbortSignal) => Promise<McpCallView>;

/** The state of a held call when its request must be answered. */
export interface HeldCall {
  /** Undefined: the service did not answer once. */
  readonly view: McpCallView | undefined;
  /** True if the service did not answer last. */
  readonly isLost: boolean;
}

/** Options of a hold. */
export interface HoldOptions {
  readonly holdMs: number;
  readonly signal: AbortSignal;
  /** Reports the call while it is held; undefined if the service does not answer. */
  report(view: McpCallView | undefined): Promise<void>;
  /** Returns true for a call that need not be held further. */
  isEnough?(view: McpCallView): boolean;
  /** Resolves when the call has asked since the last time that it resolved; absent if asks need not be reported at once. */
  asked?(): Promise<void>;
}

/** The first answer comes before this time, so that a call that waits is reported at once. */
const firstLookMs = 200;
/** Interval of progress notifications. */
const lookMs = 10_000;
const retryMs = 1_000;

/**
 * Holds a request until its call has ended, a time has passed, or the request is aborted. The first look is not aborted, so that a
 * call that was sent is known. A lost connection is tried again every second.
 */
export async function holdCall(
  look: LookAtCall,
  { holdMs, signal, report, isEnough = () => false, asked }: HoldOptions,
): Promise<HeldCall> {
  const until = performance.now() + holdMs;
  const left = () => Math.max(0, Math.ceil(until - performance.now()));
  let view: McpCallView | undefined;
  let isLost = false;
  let isFirst = true;
  let nextAsk: Promise<void> | undefined;
  /** Looks until the call has ended or a time has passed, and at once when it asks. */
  async function lookOn(): Promise<McpCallView> {
    const isOver = new AbortController();
    const seen = look(Math.min(left(), lookMs), AbortSignal.any([signal, isOver.signal]));
    const again = asked && viewOfNextAsk(asked, seen, isOver.signal);
    again?.catch(() => undefined);
    // A step of the store that the look waits for may take longer than its signal allows.
    return await untilAborted(again ? Promise.race([seen, again]) : seen, signal).finally(() => isOver.abort());
  }
  /** Resolves with a view that has a request which was not reported yet; a former look may have seen one before its event came. */
  async function viewOfNextAsk(asked: () => Promise<void>, seen: Promise<McpCallView>, isOver: AbortSignal) {
    for (;;) {
      nextAsk ??= asked();
      await nextAsk;
      // The next look sees it.
      if (isOver.aborted) return await seen;
      nextAsk = undefined;
      const found = await look(0, signal);
      if (found.permissions.some(({ id }) => !view?.permissions.some((known) => known.id === id))) return found;
    }
  }
  for (;;) {
    try {
      view = await (isFirst ? look(Math.min(left(), firstLookMs)) : lookOn());
      isLost = false;
    } catch (error) {
      if (signal.aborted) return { view, isLost };
      if (!isLostConnection(error) || (isFirst && isUnreachable(error))) throw error;
      isLost = true;
      await sleep(Math.min(left(), retryMs), undefined, { signal }).catch(() => undefined);
    }
    isFirst = false;
    const isOver = view !== undefined && (isEnded(view.part) || isEnough(view));
    if (isOver || signal.aborted || left() === 0) return { view, isLost };
    await report(isLost ? undefined : view);
  }
}

/** Checks for a terminal state. */
export function isEnded({ state }: ToolPart): boolean {
  return state.case === "completed" || state.case === "error";
}
