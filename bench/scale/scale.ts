import type { Goal } from "../goals.ts";
import { historyTable, historyTargets, measureHistory } from "../history.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import type { RoundsPlan } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";
import { answersReport, measureAnswers } from "./answer.ts";
import { type ListsPlan, measureLists } from "./lists.ts";
import { measureOpenAsks, openAsksReport } from "./open-asks.ts";
import { measureRates } from "./rates.ts";
import { measureWatchers, watchersReport } from "./watchers.ts";

/** Sizes of what has goals. */
export interface SharedPlan {
  readonly rates: RoundsPlan;
  readonly answers: { readonly warmUp: number; readonly answers: number };
  readonly asks: { readonly sessions: number; readonly asksEach: number; readonly idleMs: number };
  readonly lists: ListsPlan;
}

/** Sizes of all measurements. */
export interface ScalePlan extends SharedPlan {
  readonly watchers: { readonly watchers: number; readonly events: number };
  readonly history: {
    readonly warmUp: number;
    readonly earlier: readonly number[];
    readonly rounds: number;
    readonly calls: number;
  };
}

/** Measures replicas, answers and permission requests in turn; prints each result as it is ready. */
export async function measureShared(
  processes: Processes,
  { rates, answers, asks, lists }: SharedPlan,
  print: (report: string) => void,
): Promise<Goal[]> {
  return [
    ...(await measureRates(processes, rates, print)),
    ...answersReport(await measureAnswers(processes, answers), print),
    ...openAsksReport(await measureOpenAsks(processes, asks), print),
    ...(await measureLists(processes, lists, print)),
  ];
}

/** Measures the same, watchers and long sessions. */
export async function measureScale(
  processes: Processes,
  plan: ScalePlan,
  print: (report: string) => void,
): Promise<Goal[]> {
  const goals = await measureShared(processes, plan, print);
  print(watchersReport(await measureWatchers(processes, plan.watchers)));
  const histories = await measureHistories(processes, plan.history);
  print(historyTable(histories));
  print(historyTargets(histories));
  return goals;
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
