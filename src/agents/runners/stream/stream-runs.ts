import type { RunUpdate } from "../runner.ts";

/** Run at a connected runner, from `start`, or from the runner's `hello`, until its end is confirmed to the runner. */
export interface StreamRun {
  /** Replaces the progress that was not consumed yet. */
  progress(update: { text: string; title: string }): void;
  /** Ends the run; the first end counts. */
  end(update: Extract<RunUpdate, { type: "done" | "failed" }>): void;
  readonly hasEnded: boolean;
  /** True once nobody here waits for the run: the runner was asked to stop it. */
  readonly isCancelled: boolean;
  /** True if a call of this replica has read its updates. */
  readonly isFollowed: boolean;
  /** Ends the iteration without an update. */
  cancel(): void;
  /** Yields the updates, the end included, also if an earlier reader got it. An earlier iteration ends. */
  updates(): AsyncGenerator<RunUpdate>;
}

/** Creates a run. It holds at most one progress and one end, however many messages arrive. */
export function createStreamRun(): StreamRun {
  let latest: RunUpdate | undefined;
  let end: RunUpdate | undefined;
  let isCancelled = false;
  let reader = 0;
  let wake = () => {};
  return {
    progress({ text, title }) {
      if (end || isCancelled) return;
      const before = latest?.type === "progress" ? latest : {};
      latest = { type: "progress", ...before, ...(text !== "" && { text }), ...(title !== "" && { title }) };
      wake();
    },
    end(update) {
      end ??= update;
      wake();
    },
    get hasEnded() {
      return end !== undefined;
    },
    get isCancelled() {
      return isCancelled;
    },
    get isFollowed() {
      return reader > 0;
    },
    cancel() {
      isCancelled = true;
      latest = undefined;
      wake();
    },
    async *updates() {
      reader += 1;
      const own = reader;
      wake();
      for (;;) {
        if (isCancelled || reader !== own) return;
        if (latest) {
          const update = latest;
          latest = undefined;
          yield update;
        } else if (end) {
          yield end;
          return;
        } else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    },
  };
}
