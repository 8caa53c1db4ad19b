import { historyTable, historyTargets, measureHistory } from "../history.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { startToolgate } from "../toolgate.ts";
import { answersReport, measureAnswers } from "./answer.ts";
import { measureOpenAsks, openAsksReport } from "./open-asks.ts";
import { measureRates, ratesReport } from "./rates.ts";
import { measureWatchers, watchersReport } from "./watchers.ts";

/** Sizes of the measurements. */
export interface ScalePlan {
  readonly rates: { readonly warmUp: number; readonly rounds: number; readonly ms: number };
  readonly answers: { readonly warmUp: number; readonly answers: number };
  readonly asks: { readonly sessions: number; readonly asksEach: number; readonly idleMs: number };
  readonly watchers: { readonly watchers: number; readonly events: number };
  readonly history: {
    readonly warmUp: number;
    readonly earlier: readonly number[];
    readonly rounds: number;
    readonly calls: number;
  };
}

/** Measures replicas, permission requests, watchers and long sessions in turn; prints each result as it is ready. */
export async function measureScale(
  processes: Processes,
  plan: ScalePlan,
  print: (report: string) => void,
): Promise<void> {
  print(ratesReport(await measureRates(processes, plan.rates)));
  print(answersReport(await measureAnswers(processes, plan.answers)));
  print(openAsksReport(await measureOpenAsks(processes, plan.asks)));
  print(watchersReport(await measureWatchers(processes, plan.watchers)));
  const histories = await measureHistories(processes, plan.history);
  print(historyTable(histories));
  print(historyTargets(histories));
}

async function measureHistories(processes: Processes, plan: ScalePlan["history"]) {
  const onDisk = await measureHistory(await startToolgate(processes, { name: "history-sqlite" }), [], plan);
  await processes.stopAll();
  const redis = await startRedis(processes);
  const shared = await startToolgate(processes, { name: "history-redis", store: redis.url });
  const inRedis = await measureHistory(shared, [redis.pid], plan);
  await processes.stopAll();
  return new Map([
    ["SQLite", onDisk],
    ["Redis (its own CPU included)", inRedis],
  ]);
}
