/** Counts of values by upper bounds. */
export interface Histogram {
  readonly count: number;
  readonly sum: number;
  add(value: number): void;
  /** Returns the samples in the text format of Prometheus, without the metric's name. */
  samples(label: string): string[];
}

/** Creates an empty histogram with ascending bounds. */
export function createHistogram(bounds: readonly number[]): Histogram {
  const within = bounds.map(() => 0);
  let count = 0;
  let sum = 0;
  return {
    get count() {
      return count;
    },
    get sum() {
      return sum;
    },
    add(value) {
      count += 1;
      sum += value;
      for (const [i, bound] of bounds.entries()) if (value <= bound) within[i] = (within[i] ?? 0) + 1;
    },
    samples(label) {
      return [
        ...bounds.map((bound, i) => `_bucket{${label},le="${bound}"} ${within[i]}`),
        `_bucket{${label},le="+Inf"} ${count}`,
        `_sum{${label}} ${sum}`,
        `_count{${label}} ${count}`,
      ];
    },
  };
}
