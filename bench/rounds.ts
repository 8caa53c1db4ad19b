import { type Competitor, ours, peers } from "./competitors.ts";
import { measure, type Sample, type Target } from "./load.ts";
import type { Processes } from "./processes.ts";

/** Key of a competitor → its sample of each round, so that samples of one index stand side by side. */
export type Rounds = ReadonlyMap<string, readonly Sample[]>;

/** Warms up all competitors with the same number of calls, then runs them in turn; each round reverses the order. */
export async function runRounds(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
): Promise<Rounds> {
  const running: { key: string; target: Target; samples: Sample[] }[] = [];
  for (const { key, start } of all) {
    const target = await start(processes);
    await measure(target, { calls: warmUp });
    running.push({ key, target, samples: [] });
  }
  for (let round = 0; round < rounds; round += 1) {
    for (const { target, samples } of running) {
      // A server that was idle during the turns of the others is slow at first; that is not measured.
      await measure(target, { ms: ms / 2 });
      samples.push(await measure(target, { ms }));
    }
    running.reverse();
  }
  await processes.stopAll();
  return new Map(running.map(({ key, samples }) => [key, samples]));
}

const all: readonly Competitor[] = [...ours, ...peers];
