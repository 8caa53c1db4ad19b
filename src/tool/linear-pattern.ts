import { RE2JS } from "@bufbuild/re2";

/** A compiled pattern of a schema. */
export interface LinearPattern {
  test(text: string): boolean;
  toString(): string;
}

/** The work that the patterns of one check may do together. */
export interface PatternBudget {
  left: number;
}

/** Work that the patterns of one check may do: about a quarter of a second. */
export const maxPatternWork = 10_000_000;

/**
 * Compiles a pattern so that matching takes time linear in the text; throws for one that needs backtracking. A text for which the
 * budget does not suffice does not match.
 */
export function linearPattern(pattern: string, budget: PatternBudget): LinearPattern {
  const weight = patternWeight(pattern);
  try {
    const compiled = RE2JS.compile(pattern.replaceAll(/\\u([0-9a-fA-F]{4})/g, "\\x{$1}"));
    return {
      test(text) {
        budget.left -= text.length * weight;
        return budget.left >= 0 && compiled.test(text);
      },
      toString: () => pattern,
    };
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(
      `the pattern ${JSON.stringify(pattern)} cannot be matched in linear time (${why}); write it without lookaround and back references`,
      { cause },
    );
  }
}

/** Estimates the work of a pattern for each character: its length, in which a class of Unicode counts more, times its repetitions. */
export function patternWeight(pattern: string): number {
  const classes = pattern.match(/\\[pP]/g)?.length ?? 0;
  const counts = [...pattern.matchAll(/\{(\d+)(?:,(\d*))?\}/g)].map(([, min, max]) => Number(max || min));
  const repetitions = counts.reduce((sum, count) => sum + count, 0);
  return (pattern.length + 50 * classes) * Math.max(1, repetitions);
}
