/**
 * Passes on what comes from any of the sources, in the order in which it comes, until all have ended or one fails. Each is
 * asked for its next when its last was taken, so a busy one keeps no other waiting. To end them is up to who made them.
 */
export async function* merge<T>(sources: readonly AsyncIterator<T, void>[]): AsyncGenerator<T, void> {
  const settled: { source: AsyncIterator<T, void>; next: Promise<IteratorResult<T, void>> }[] = [];
  let wake = () => {};
  const ask = (source: AsyncIterator<T, void>) => {
    const next = source.next();
    const settle = () => {
      settled.push({ source, next });
      wake();
    };
    next.then(settle, settle);
  };
  for (const source of sources) ask(source);
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
    ask(first.source);
  }
}
