import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** The state of a request to the service. */
export interface Loaded<T> {
  /** The last answer; it stays while the next one loads. */
  readonly value: T | undefined;
  readonly isLoading: boolean;
  /** The reason why the last request failed; empty if it did not. */
  readonly problem: string;
  reload(): void;
}

/** Loads when a component is first shown and whenever an input changes; the answer to an outdated request is dropped. */
export function useLoaded<T>(load: (signal: AbortSignal) => Promise<T>, inputs: readonly unknown[]): Loaded<T> {
  const state = useSignal<Omit<Loaded<T>, "reload">>({ value: undefined, isLoading: true, problem: "" });
  const round = useSignal(0);
  useEffect(() => {
    const over = new AbortController();
    state.value = { ...state.peek(), isLoading: true };
    load(over.signal).then(
      (value) => {
        if (!over.signal.aborted) state.value = { value, isLoading: false, problem: "" };
      },
      (error: unknown) => {
        if (!over.signal.aborted) state.value = { ...state.peek(), isLoading: false, problem: failureText(error) };
      },
    );
    return () => over.abort();
  }, [...inputs, round.value]);
  return {
    ...state.value,
    reload() {
      round.value += 1;
    },
  };
}

/** Runs what a person pressed, and returns why the last of it failed. */
export function useAttempt(): { failure: string; attempt(work: () => Promise<unknown>): Promise<void> } {
  const failure = useSignal("");
  return {
    failure: failure.value,
    async attempt(work) {
      failure.value = "";
      await work().catch((error: unknown) => {
        failure.value = failureText(error);
      });
    },
  };
}

/** The message of the service's error. */
export function failureText(error: unknown): string {
  return ConnectError.from(error).rawMessage;
}
