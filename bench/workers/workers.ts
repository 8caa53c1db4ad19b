import type { Goal } from "../goals.ts";
import type { Processes } from "../processes.ts";
import type { RoundsPlan } from "../rounds.ts";
import { type AdoptionPlan, measureAdoption } from "./adoption.ts";
import { measureCalls } from "./calls.ts";
import { type CancelPlan, measureCancel } from "./cancel.ts";
import { type HostilePlan, measureHostile } from "./hostile.ts";
import { type IdlePlan, measureIdle } from "./idle.ts";
import { measureOtherReplica } from "./other-replica.ts";

/** Sizes of the measurements of workers. */
export interface WorkersPlan {
  readonly calls: RoundsPlan;
  readonly cancel: CancelPlan;
  readonly hostile: HostilePlan;
  readonly idle: IdlePlan;
  readonly adoption: AdoptionPlan;
}

/** Measures what workers cost: their calls, many idle processes, and what a replica that is killed leaves to others. */
export async function measureWorkers(
  processes: Processes,
  { calls, cancel, hostile, idle, adoption }: WorkersPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const goals = await measureCalls(processes, calls, print);
  goals.push(...(await measureOtherReplica(processes, calls, print)));
  await measureCancel(processes, cancel, print);
  await measureHostile(processes, hostile, print);
  await measureIdle(processes, idle, print);
  await measureAdoption(processes, adoption, print);
  return goals;
}
