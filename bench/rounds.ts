import { measure, type Sample, type Target } from "./load.ts";

/** Calls before anything is measured, and milliseconds of each of some rounds. */
export interface RoundsPlan {
  readonly warmUp: number;
  readonly rounds: number;
  readonly ms: number;
}

/**
 * Warms up all targets, then measures them in turn; each round reverses the order. Resolves to the samples of each target: those of one
 * index stand side by side. `also` runs after a target was measured.
 */
export async function runRounds<T extends Target>(
  targets: readonly T[],
  { warmUp, rounds, ms }: RoundsPlan,
  also: (target: T) => Promise<void> = async () => {},
): Promise<Map<T, Sample[]>> {
  for (const target of targets) await measure(target, { calls: warmUp });
  const samples = new Map(targets.map((target) => [target, [] as Sample[]]));
  for (let round = 0; round < rounds; round += 1) {
    for (const target of round % 2 === 0 ? targets : targets.toReversed()) {
      // A server that was idle during the turns of the others is slow at first; that is not measured.
      await measure(target, { ms: ms / 2 });
      samples.get(target)?.push(await measure(target, { ms }));
      await also(target);
    }
  }
  return samples;
}

/** Divides the values of each round. */
export function ratios(ours: readonly number[], theirs: readonly number[]): number[] {
  return ours.map((value, round) => value / (theirs[round] ?? Number.NaN));
}
