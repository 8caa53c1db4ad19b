/** Budget for matching texts with rules, in characters that are compared. Counted before the work is done. */
export interface MatchSteps {
  /** Counts steps; throws `TooManySteps` instead of allowing more than the budget. */
  spend(steps: number): void;
  /** The steps so far. */
  used(): number;
}

/** The texts and rules of a decision are too large to match. */
export class TooManySteps extends Error {
  override name = "TooManySteps";
}

/** Takes 30 ms for common rules and 400 ms for hostile ones. */
export const maxMatchSteps = 16_000_000;

/** Steps that hostile rules take in a millisecond. */
export const stepsPerMs = 40_000;

/** Creates a budget. */
export function createMatchSteps(max = maxMatchSteps): MatchSteps {
  let used = 0;
  return {
    spend(steps) {
      if (used + steps > max) throw new TooManySteps(`matching takes more than ${max} steps`);
      used += steps;
    },
    used: () => used,
  };
}
