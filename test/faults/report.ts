import { appendFileSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Row of one test in the table at the end of the run. */
export interface Count {
  fault: string;
  faults: number;
  calls: number;
  answers: number;
  runs: number;
  violations: number;
  /** Description of the measurements. */
  seen?: string;
}

/** True in the long run. */
export const isLong = process.env.TOOLGATE_LONG === "1";

/** Adds a line to the table. */
export function report(count: Count): void {
  const file = process.env.TOOLGATE_FAULTS_REPORT;
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(count)}\n`);
}

/** Runs before all tests; vitest calls the returned function after them, which prints the table. */
export default async function setup(): Promise<() => Promise<void>> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-faults-"));
  const file = join(folder, "counts.jsonl");
  process.env.TOOLGATE_FAULTS_REPORT = file;
  return async () => {
    const text = await readFile(file, "utf8").catch(() => "");
    await rm(folder, { recursive: true });
    process.stdout.write(`\n${table(text.split("\n").slice(0, -1))}\n`);
  };
}

function table(lines: readonly string[]): string {
  const counts: Count[] = lines.map((line) => JSON.parse(line));
  const rows = counts.map((count) => [
    count.fault,
    ...[count.faults, count.calls, count.answers, count.runs, count.violations].map(String),
    count.seen ?? "",
  ]);
  const head = ["what was done", "faults", "calls", "answers", "runs", "violations", "seen"];
  return [head, head.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}
