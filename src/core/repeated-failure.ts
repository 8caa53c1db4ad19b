/**
 * Limits log lines about a failure that repeats: the first one is reported, then one in each interval, with the number of
 * failures since the last report. Returns the function to call at each failure, and the one to call at a success.
 */
export function createRepeatedFailure<Failure>(
  report: (failure: Failure, count: number) => void,
  { intervalMs = 10_000, now = () => performance.now() }: { intervalMs?: number; now?: () => number } = {},
) {
  let reported: number | undefined;
  let count = 0;
  return {
    failed(failure: Failure): void {
      count += 1;
      if (reported !== undefined && now() - reported < intervalMs) return;
      reported = now();
      report(failure, count);
      count = 0;
    },
    /** Returns true if a failure had been reported. */
    succeeded(): boolean {
      const had = reported !== undefined;
      reported = undefined;
      count = 0;
      return had;
    },
  };
}

/** Limits the log lines about each name, of which there are few, to one a minute: strangers can cause such failures. */
export function createRepeatedFailures<Failure>(report: (name: string, failure: Failure, count: number) => void) {
  const byName = new Map<string, ReturnType<typeof createRepeatedFailure<Failure>>>();
  return {
    failed(name: string, failure: Failure): void {
      const failures =
        byName.get(name) ??
        createRepeatedFailure<Failure>((failure, count) => report(name, failure, count), { intervalMs: 60_000 });
      byName.set(name, failures);
      failures.failed(failure);
    },
  };
}
