import { median } from "../report.ts";

/** The values of one figure at two sides; those of one index are of one round. */
export interface Figure {
  readonly label: string;
  readonly unit: string;
  readonly ours: readonly number[];
  readonly theirs: readonly number[];
}

/** A ratio with the interval that holds the true one in 95 of 100 such benches. */
export interface Ratio {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Divides the values round by round: the geometric mean of the ratios, with its interval by Student's t. */
export function ratioOf({ ours, theirs }: Pick<Figure, "ours" | "theirs">): Ratio {
  const logs = ours.map((value, round) => Math.log(value / (theirs[round] ?? Number.NaN)));
  const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length;
  const variance = logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / (logs.length - 1);
  const half = tQuantile(logs.length - 1) * Math.sqrt(variance / logs.length);
  return { mean: Math.exp(mean), low: Math.exp(mean - half), high: Math.exp(mean + half) };
}

/** One row of the report: both medians, the ratio with its interval, and the verdict at a limit of 5 %. */
export function figureRow(figure: Figure): string[] {
  const { mean, low, high } = ratioOf(figure);
  const text = (value: number) => `${value.toLocaleString("en", { maximumSignificantDigits: 4 })} ${figure.unit}`;
  const interval = Number.isFinite(low) ? ` (${low.toFixed(3)}–${high.toFixed(3)})` : "";
  const verdict = high < 1 ? "less" : mean <= maxRatio ? "same" : low <= 1 || interval === "" ? "uncertain" : "more";
  return [figure.label, text(median(figure.ours)), text(median(figure.theirs)), mean.toFixed(3) + interval, verdict];
}

const maxRatio = 1.05;

/** The 97.5 % quantile of Student's t, by degrees of freedom. */
function tQuantile(degrees: number): number {
  if (degrees < 1) return Number.NaN;
  return quantiles[Math.min(degrees, quantiles.length) - 1] ?? Number.NaN;
}

const quantiles = [
  ...[12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131],
  ...[2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042],
];
