/** Resolves with the work of a body. After an abort it gives the body 5 s to stop, then throws without it. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const abandoned = new Promise<never>((_, reject) => {
    onAbort = () => {
      timer = setTimeout(() => reject(signal.reason), 5_000);
    };
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
  try {
    return await Promise.race([work, abandoned]);
  } finally {
    clearTimeout(timer);
    if (onAbort) signal.removeEventListener("abort", onAbort);
  }
}

/** Creates a deadline of which some time may be spent already. It is paused while the body waits for approvers or child calls. */
export function createDeadline(ms: number, passed: (ms: number) => void, spentMs = 0) {
  let left = Math.max(0, ms - spentMs);
  let since = performance.now();
  let timer: NodeJS.Timeout | undefined = setTimeout(passed, left, ms);
  let pauses = 0;
  return {
    async whilePaused<T>(work: () => Promise<T>): Promise<T> {
      pauses += 1;
      if (pauses === 1) {
        clearTimeout(timer);
        left -= performance.now() - since;
      }
      try {
        return await work();
      } finally {
        pauses -= 1;
        if (pauses === 0 && timer) {
          since = performance.now();
          timer = setTimeout(passed, Math.max(0, left), ms);
        }
      }
    },
    clear(): void {
      clearTimeout(timer);
      timer = undefined;
    },
  };
}
