/** Resolves with the work; after an abort it waits a little for the body to stop, then goes on without it. */
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

/** A deadline that stands still while a person thinks. */
export function createDeadline(ms: number, passed: (ms: number) => void) {
  let left = ms;
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
