/** Waits for work for a time, then returns what `late` returns, or throws what it throws; the timer ends with the wait. */
export async function within<Result, Late = never>(
  ms: number,
  work: Promise<Result>,
  late: () => Late = () => {
    throw new Error(`it was not ready within ${ms / 1_000} s`);
  },
): Promise<Result | Late> {
  const over = Promise.withResolvers<void>();
  const timer = setTimeout(over.resolve, ms);
  return await Promise.race([work, over.promise.then(late)]).finally(() => clearTimeout(timer));
}

/** Waits for work until the signal is aborted, then throws its reason, while the work goes on. */
export async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  return await Promise.race([work, aborted]).finally(() => signal.removeEventListener("abort", abort));
}
