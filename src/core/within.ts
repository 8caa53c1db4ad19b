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
