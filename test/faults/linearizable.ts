/** An operation on one object, as its client saw it. */
export interface Operation<State> {
  /** Describes it in a violation. */
  readonly name: string;
  /** Time of the request. */
  readonly from: number;
  /** Time of the response; infinite without one: it may have taken effect at any later time, or never. */
  readonly to: number;
  /** Returns the state that follows; undefined if its result is impossible in this state. */
  apply(state: State): State | undefined;
}

/**
 * Searches for an order of operations in which each takes effect at one moment between its request and its response, and has the result
 * that it had (the search of Wing and Gong, which remembers the states that lead nowhere). Returns undefined if there is one,
 * otherwise the operations that no order reaches.
 */
export function unorderable<State extends string | number>(
  operations: readonly Operation<State>[],
  initial: State,
): string[] | undefined {
  const all = operations.toSorted((one, other) => one.from - other.from);
  const deadEnds = new Set<string>();
  let farthest = all;

  function search(left: readonly Operation<State>[], state: State): boolean {
    const answered = left.filter(({ to }) => to !== Number.POSITIVE_INFINITY);
    if (answered.length < farthest.length) farthest = answered;
    if (answered.length === 0) return true;
    const key = `${state} ${left.map((operation) => all.indexOf(operation)).join()}`;
    if (deadEnds.has(key)) return false;
    const first = Math.min(...left.map(({ to }) => to));
    for (const operation of left) {
      // It begins after another one has ended, which therefore comes first.
      if (operation.from > first) break;
      const next = operation.apply(state);
      if (
        next !== undefined &&
        search(
          left.filter((each) => each !== operation),
          next,
        )
      )
        return true;
    }
    deadEnds.add(key);
    return false;
  }

  return search(all, initial) ? undefined : farthest.map(({ name }) => name);
}
