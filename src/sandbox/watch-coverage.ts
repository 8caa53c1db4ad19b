import { setTimeout as delay } from "node:timers/promises";
import type { FileRules } from "../policy/file-rules.ts";
import type { Confined, Covered } from "./layers.ts";

/** A check of what a process that outlives single calls is confined to. */
export interface CoverageWatch {
  confined: Pick<Confined, "uncovered">;
  /** Returns the rules that hold now. */
  rules(): Promise<FileRules>;
  /** Called with paths that rules restrict now and the process can reach; once for each path. */
  onUncovered(paths: readonly Covered[]): void;
  /** Called if a check fails, once. */
  onProblem(error: unknown): void;
  everyMs?: number;
}

/**
 * Checks again and again, until the signal is aborted, if rules or files have changed so that the mounts of a running process do
 * not suffice any more. Mounts cannot be added to it, so its owner restarts it, or reports that it has to be started again.
 */
export async function watchCoverage(
  { confined, rules, onUncovered, onProblem, everyMs = defaultPauseMs }: CoverageWatch,
  signal: AbortSignal,
): Promise<void> {
  const known = new Set<string>();
  let hasFailed = false;
  while (!signal.aborted) {
    await delay(everyMs, undefined, { signal, ref: false }).catch(() => undefined);
    if (signal.aborted) return;
    try {
      const found = (await confined.uncovered(await rules())).filter(({ path }) => !known.has(path));
      for (const { path } of found) known.add(path);
      if (found.length > 0 && !signal.aborted) onUncovered(found);
    } catch (error) {
      if (!hasFailed && !signal.aborted) onProblem(error);
      hasFailed = true;
    }
  }
}

const defaultPauseMs = 15_000;
