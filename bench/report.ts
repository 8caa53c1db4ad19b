import { execFileSync } from "node:child_process";
import { cpus, loadavg } from "node:os";

/** The machine and the commit, in one line: without it no figure means anything. */
export function machineLine(date: Date): string {
  const cores = cpus();
  const [{ model } = { model: "unknown CPU" }] = cores;
  const [load = 0] = loadavg();
  const commit = execFileSync("git", ["describe", "--always", "--dirty", "--exclude=*"], {
    cwd: import.meta.dirname,
    encoding: "utf8",
  }).trim();
  return `${model.trim()}, ${cores.length} cores (shared with the client; load before it began ${load.toFixed(1)}), Node ${process.versions.node}, commit ${commit}, ${date.toISOString().slice(0, 10)}.`;
}

/** Compares a figure with its target; a missed one is reported and fails nothing. */
export function target(what: string, value: number, limit: number, unit: string, digits = 2): string {
  const verdict = value <= limit ? "reached" : "not reached";
  return `- ${what}: ${value.toFixed(digits)} ${unit}; target ≤ ${limit}: ${verdict}`;
}

/** The value that a share of all does not exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? Number.NaN;
}

/** Median and range: `12 (10–15)`. */
export function spread(values: readonly number[], digits = 0): string {
  const text = (value: number) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${text(median(values))} (${text(Math.min(...values))}–${text(Math.max(...values))})`;
}

/** The value in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? upper) + upper) / 2;
}

/** A Markdown table whose first column is text and whose others are figures. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map((_, column) => (column === 0 ? "---" : "---:"))), ...rows.map(line)].join("\n");
}
