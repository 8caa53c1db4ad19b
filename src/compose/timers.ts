import type { Logger } from "../core/logger.ts";
import { createRepeatedFailure } from "../core/repeated-failure.ts";

/** Background work and the pause after each round of it. */
export interface Job {
  everyMs: number;
  work(): Promise<void>;
}

/** Repeats each job, never two rounds of one job at once. Logs failures, a repeated one each ten seconds, and goes on. Returns a function that stops all jobs and resolves when they have ended. */
export function startTimers(jobs: readonly Job[], log: Logger): () => Promise<void> {
  const stopped = new AbortController();
  const loops = jobs.map(async ({ everyMs, work }) => {
    const failure = createRepeatedFailure<unknown>((error, count) =>
      log.error("a background job failed and is tried again", { error, count }),
    );
    while (!stopped.signal.aborted) {
      await work().then(failure.succeeded, failure.failed);
      await pause(everyMs, stopped.signal);
    }
  });
  return async () => {
    stopped.abort();
    await Promise.all(loops);
  };
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done(): void {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
