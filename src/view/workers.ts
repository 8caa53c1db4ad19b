import type { WorkerFleet, WorkerProcess } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { countOf } from "./quantities.ts";

/** The state of a worker process: one that is away may return. */
export function workerState({ connected, draining }: Pick<WorkerProcess, "connected" | "draining">) {
  if (!connected) return "away";
  return draining ? "draining" : "connected";
}

/** The processes of a fleet. */
export function processesOf(
  { worker, principal }: Pick<WorkerFleet, "worker" | "principal">,
  workers: readonly WorkerProcess[],
): WorkerProcess[] {
  return workers.filter((each) => each.worker === worker && each.principal === principal);
}

/** The state of a fleet in words, such as `2 connected, 1 away, runs 3 of 8, 1 call waits`. */
export function fleetSummary({ waiting }: Pick<WorkerFleet, "waiting">, own: readonly WorkerProcess[]): string {
  const states = (["connected", "draining", "away"] as const).flatMap((state) => {
    const { length } = own.filter((process) => workerState(process) === state);
    return length === 0 ? [] : [`${length} ${state}`];
  });
  const connected = own.filter(({ connected }) => connected);
  const sum = (field: "running" | "capacity") => connected.reduce((total, process) => total + process[field], 0);
  return [
    ...(states.length === 0 ? ["no process"] : states),
    ...(connected.length === 0 ? [] : [`runs ${sum("running")} of ${sum("capacity")}`]),
    ...(waiting === 0 ? [] : [`${countOf(waiting, "call")} ${waiting === 1 ? "waits" : "wait"}`]),
  ].join(", ");
}

/** The arguments of the command that creates the token of a first worker. */
export const workerTokenWords = ["token", "create", "--role", "worker", "--tool", "NAME"] as const;
