/** Sources whose items are merged; more may be added while the items are read. */
export interface Merger<T> {
  add(source: AsyncIterator<T, void>): void;
  /** Yields the items in the order in which they arrive, until all sources have ended or one fails. */
  items(): AsyncGenerator<T, void>;
  /** Ends the sources that have not ended. */
  close(): Promise<void>;
}

/**
 * Creates a merger without sources. A source is asked for its next item when its last one was taken, so that a busy source
 * delays no other.
 */
export function createMerger<T>(): Merger<T> {
  const settled: { source: AsyncIterator<T, void>; next: Promise<IteratorResult<T, void>> }[] = [];
  const open = new Set<AsyncIterator<T, void>>();
  let wake = () => {};
  const request = (source: AsyncIterator<T, void>) => {
    const next = source.next();
    const settle = () => {
      settled.push({ source, next });
      wake();
    };
    next.then(settle, settle);
  };
  return {
    add(source) {
      open.add(source);
      request(source);
    },
    async *items() {
      while (open.size > 0) {
        const first = settled.shift();
        if (first === undefined) {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
          continue;
        }
        const { done, value } = await first.next;
        if (done) {
          open.delete(first.source);
          continue;
        }
        yield value;
        request(first.source);
      }
    },
    async close() {
      await Promise.allSettled([...open].map((source) => source.return?.()));
    },
  };
}

/** Merges sources in the order in which their items arrive, until all have ended or one fails. The caller ends the sources. */
export function merge<T>(sources: readonly AsyncIterator<T, void>[]): AsyncGenerator<T, void> {
  const merger = createMerger<T>();
  for (const source of sources) merger.add(source);
  return merger.items();
}
