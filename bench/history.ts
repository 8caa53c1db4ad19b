import { callByConnect, openSession } from "./echoes.ts";
import { measure } from "./load.ts";
import type { Processes } from "./processes.ts";
import { startToolgate } from "./toolgate.ts";

/** How many calls a session has had → CPU µs of a call after them, one figure for each round. */
export type History = ReadonlyMap<number, readonly number[]>;

/** Measures what a call costs in a young session and in old ones; the old ones grow by `calls` a round. */
export async function measureHistory(
  processes: Processes,
  { warmUp, earlier, rounds, calls }: { warmUp: number; earlier: readonly number[]; rounds: number; calls: number },
): Promise<History> {
  const { server, client } = await startToolgate(processes, "history");
  const sessionWith = async (count: number) => {
    const target = { server, echo: callByConnect(client, await openSession(client)) };
    await measure(target, { calls: count });
    return target;
  };
  await sessionWith(warmUp);
  const oldest = Math.max(...earlier);
  const old = await sessionWith(oldest);
  const costs = new Map(earlier.map((count) => [count, [] as number[]]));
  for (let round = 0; round < rounds; round += 1) {
    for (const [count, samples] of costs) {
      const target = count === oldest ? old : await sessionWith(count);
      samples.push((await measure(target, { calls })).cpuPerCall);
    }
  }
  await processes.stopAll();
  return costs;
}
