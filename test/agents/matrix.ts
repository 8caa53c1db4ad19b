import type { RunnerTask } from "vitest";

/** What one agent did in one row of the table of docs/agents/README.md. */
export interface Measured {
  readonly kind: string;
  readonly row: string;
  readonly outcome: Outcome;
}

/** `runs` is the outcome that nobody allowed; a number counts tools. */
export type Outcome = "allowed" | "asks" | "denied" | "runs" | `${number}`;

declare module "vitest" {
  interface TaskMeta {
    measured?: Measured[];
  }
}

/** The row of a setting of a project where the hooks stand in the settings of the machine. */
export const machineRow = (path: string) => `hooks of the machine; a project sets \`${path}\``;

/** Records an outcome for the table; connectors without a kind have no column. */
export function measure(
  { task }: { task: Pick<RunnerTask, "meta"> },
  kind: string,
  row: string,
  outcome: Outcome,
): void {
  if (kind !== "") task.meta.measured = [...(task.meta.measured ?? []), { kind, row, outcome }];
}

/** Records how many native tools of an agent had each result of the canary. */
export function measureTools(
  context: Parameters<typeof measure>[0],
  kind: string,
  rows: readonly { readonly result: string }[],
): void {
  for (const result of ["asks", "runs unasked", "disabled", "not verified"])
    measure(context, kind, `native tools: ${result}`, `${rows.filter((row) => row.result === result).length}`);
}
