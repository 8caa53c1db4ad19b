import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** What was asked of the service, as far as it is known. */
export interface Loaded<T> {
  /** The last answer; it stays while the next one is under way. */
  readonly value: T | undefined;
  readonly isLoading: boolean;
  /** Why there is no newer answer; empty if there is. */
  readonly problem: string;
  reload(): void;
}

/** Asks when a component is first shown and whenever an input changes; an answer to an older question is dropped. */
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

/** What the service said is wrong. */
export function failureText(error: unknown): string {
  return ConnectError.from(error).rawMessage;
}
