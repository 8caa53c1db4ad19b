import { isEnded, type LookAtCall } from "./hold-call.ts";
import type { ToolgateApi } from "./toolgate-api.ts";

/** Looks at a call whose input is not known, every second. */
export function lookById({ tools }: ToolgateApi, ref: { sessionId: string; callId: string }): LookAtCall {
  return async (waitMs, signal) => {
    const until = performance.now() + waitMs;
    for (;;) {
      const { part, permissions } = await tools.getToolPart(ref, { ...(signal && { signal }) });
      if (part === undefined) throw new Error("the service sent no call");
      const left = until - performance.now();
      if (isEnded(part) || left <= 0) return { part, permissions };
      await pause(Math.min(left, 1_000), signal);
    }
  };
}

/** Resolves after a time, or when the signal is aborted. */
function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
