import type { Logger } from "../core/logger.ts";

/** Background work and the pause after each round of it. */
export interface Job {
  everyMs: number;
  work(): Promise<void>;
}

/** Repeats each job, never two rounds of one job at once. Logs failures and goes on. Returns a function that stops all jobs and resolves when they have ended. */
export function startTimers(jobs: readonly Job[], log: Logger): () => Promise<void> {
  const stopped = new AbortController();
  const loops = jobs.map(async ({ everyMs, work }) => {
    while (!stopped.signal.aborted) {
      await work().catch((error: unknown) => log.error("a background job failed and is tried again", { error }));
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
