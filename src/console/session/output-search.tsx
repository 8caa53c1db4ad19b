import { type Signal, useComputed, useSignal } from "@preact/signals";
import { type AnsiLine, plainOf } from "./ansi.ts";
import type { OutputReader } from "./call-output.ts";

/** A search in the loaded lines. */
export interface OutputSearch {
  readonly text: Signal<string>;
  readonly count: number;
  /** The index of the current hit among the hits. */
  readonly index: number;
  /** The line of the current hit; -1 if there is none. */
  readonly current: number;
  hitAt(line: number): "current" | "yes" | undefined;
  /** Goes to another hit; after the last one comes the first. */
  step(by: number): void;
  set(text: string): void;
}

/** Searches the loaded lines of an output, or lines that are given. */
export function useSearch(output: OutputReader | undefined, lines: readonly AnsiLine[]): OutputSearch {
  const text = useSignal("");
  const index = useSignal(0);
  const hits = useComputed(() => {
    const wanted = text.value.toLowerCase();
    const searched = output?.lines.value ?? lines;
    if (wanted === "") return [];
    return searched.flatMap((line, i) => (plainOf(line).toLowerCase().includes(wanted) ? [i] : []));
  });
  const isHit = new Set(hits.value);
  const count = hits.value.length;
  const current = hits.value[index.value] ?? -1;
  return {
    text,
    count,
    index: index.value,
    current,
    hitAt: (line) => (isHit.has(line) ? (line === current ? "current" : "yes") : undefined),
    step(by) {
      if (count > 0) index.value = (index.value + by + count) % count;
    },
    set(next) {
      text.value = next;
      index.value = 0;
    },
  };
}

/** The field of a search, with the number of hits. */
export function SearchField({ search, onInput }: { search: OutputSearch; onInput: () => void }) {
  return (
    <>
      <input
        type="search"
        aria-label="Search the output"
        placeholder="Search"
        value={search.text}
        onInput={({ currentTarget }) => {
          search.set(currentTarget.value);
          onInput();
        }}
        onKeyDown={({ key, shiftKey }) => {
          if (key === "Enter") search.step(shiftKey ? -1 : 1);
        }}
      />
      {search.text.value !== "" && (
        <span class="hits" role="status">
          {search.count === 0 ? "none" : `${search.index + 1} of ${search.count}`}
        </span>
      )}
    </>
  );
}
