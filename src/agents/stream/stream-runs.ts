import type { AgentRun, RunUpdate } from "../runner.ts";

/** Run at a connected runner, from `start` until the runner confirms its end. */
export interface StreamRun {
  readonly run: AgentRun;
  /** Replaces the progress that was not consumed yet. */
  progress(update: { text: string; title: string }): void;
  /** Ends the run; the first end counts. */
  end(update: Extract<RunUpdate, { type: "done" | "failed" }>): void;
  /** True once nobody here waits for the run: the runner was asked to stop it. */
  readonly isCancelled: boolean;
  /** Ends the iteration without an update. */
  cancel(): void;
  updates(): AsyncGenerator<RunUpdate>;
}

/** Creates a run. It holds at most one progress and one end, however many messages arrive. */
export function createStreamRun(run: AgentRun): StreamRun {
  let latest: RunUpdate | undefined;
  let end: RunUpdate | undefined;
  let isCancelled = false;
  let wake = () => {};
  return {
    run,
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
    get isCancelled() {
      return isCancelled;
    },
    cancel() {
      isCancelled = true;
      latest = undefined;
      wake();
    },
    async *updates() {
      for (;;) {
        if (isCancelled) return;
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
