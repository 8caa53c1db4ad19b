/**
 * Merges sources in the order in which their items arrive, until all have ended or one fails. A source is asked for its next
 * item when its last one was taken, so that a busy source delays no other. The caller ends the sources.
 */
export async function* merge<T>(sources: readonly AsyncIterator<T, void>[]): AsyncGenerator<T, void> {
  const settled: { source: AsyncIterator<T, void>; next: Promise<IteratorResult<T, void>> }[] = [];
  let wake = () => {};
  const request = (source: AsyncIterator<T, void>) => {
    const next = source.next();
    const settle = () => {
      settled.push({ source, next });
      wake();
    };
    next.then(settle, settle);
  };
  for (const source of sources) request(source);
  for (let open = sources.length; open > 0; ) {
    const first = settled.shift();
    if (first === undefined) {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
      continue;
    }
    const { done, value } = await first.next;
    if (done) {
      open -= 1;
      continue;
    }
    yield value;
    request(first.source);
  }
}
