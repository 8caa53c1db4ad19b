import { median, spread, table } from "./report.ts";

/** A figure with its goal, and its values of each round. */
export interface Goal {
  readonly figure: string;
  readonly limit: number;
  readonly unit: string;
  readonly values: readonly number[];
  /** The same between two equal setups, as a ratio: what differs from 1 is the machine's doing. */
  readonly control?: readonly number[];
  /** The limit is the least that is wanted, not the most. */
  readonly isLeast?: boolean;
  /** Load of the machine before it was measured. */
  readonly load?: number;
}

/** One row for each figure; a missed goal is reported and fails nothing. */
export function goalsTable(goals: readonly Goal[]): string {
  const digits = (limit: number) => (limit < 20 ? 2 : 0);
  const row = ({ figure, limit, unit, values, control = [], isLeast = false, load }: Goal) => {
    const value = median(values);
    return [
      figure,
      `${isLeast ? "≥" : "≤"} ${limit.toLocaleString("en")} ${unit}`,
      spread(values, digits(limit)),
      control.length > 0 ? spread(control, 2) : "",
      load?.toFixed(1) ?? "",
      (isLeast ? value >= limit : value <= limit) ? "reached" : "missed",
    ];
  };
  return table(["figure", "goal", "measured", "control", "load before", ""], goals.map(row));
}
