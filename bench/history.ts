import { callByConnect, openSession } from "./echoes.ts";
import { measure } from "./load.ts";
import { median, spread, table, target } from "./report.ts";
import type { Toolgate } from "./toolgate.ts";

/** Number of earlier calls in the session → CPU µs of a call after them, one figure for each round. */
export type History = ReadonlyMap<number, readonly number[]>;

/** Measures what a call costs in a young session and in old ones; the old ones grow by `calls` a round. */
export async function measureHistory(
  { server, connect }: Pick<Toolgate, "server" | "connect">,
  storePids: readonly number[],
  { warmUp, earlier, rounds, calls }: { warmUp: number; earlier: readonly number[]; rounds: number; calls: number },
): Promise<History> {
  const client = connect("caller");
  const pids = [server.pid, ...storePids];
  const sessionWith = async (count: number) => {
    const session = { pids, echo: callByConnect(client, await openSession(client)) };
    await measure(session, { calls: count });
    return session;
  };
  await sessionWith(warmUp);
  const oldest = Math.max(...earlier);
  const old = await sessionWith(oldest);
  const costs = new Map(earlier.map((count) => [count, [] as number[]]));
  for (let round = 0; round < rounds; round += 1) {
    // The machine changes its speed from minute to minute: neither end of a round is always the same session's.
    for (const [count, samples] of round % 2 === 0 ? costs : [...costs].reverse()) {
      const session = count === oldest ? old : await sessionWith(count);
      samples.push((await measure(session, { calls })).cpuPerCall);
    }
  }
  return costs;
}

/** Cost of a call by the number of earlier calls in its session, for each store. */
export function historyTable(histories: ReadonlyMap<string, History>): string {
  const counts = [...(histories.values().next().value?.keys() ?? [])];
  const rows = counts.map((earlier) => [
    earlier.toLocaleString("en"),
    ...[...histories.values()].map((history) => spread(history.get(earlier) ?? [])),
  ]);
  return table(["CPU µs/call after so many in the session", ...histories.keys()], rows);
}

/** Difference of older sessions to the youngest of the same round, against the target. */
export function historyTargets(histories: ReadonlyMap<string, History>): string {
  return [...histories]
    .map(([store, history]) => {
      const [youngest = [], ...older] = history.values();
      const ratios = older.map((costs) => median(costs.map((cost, round) => cost / (youngest[round] ?? Number.NaN))));
      const furthest = Math.max(...ratios.map((ratio) => Math.abs(ratio - 1)));
      return target(`${store}: difference to the youngest session, at most`, 100 * furthest, 20, "%", 0);
    })
    .join("\n");
}
