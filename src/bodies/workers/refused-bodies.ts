import type { RemoteCall } from "../../tool/remote.ts";
import type { WorkersState } from "./state.ts";
import { keyOfCall, type WorkerProcess } from "./worker-process.ts";

const maxCalls = 10_000;
const firstPauseMs = 1_000;
const maxPauseMs = 60_000;

/** Remembers that a process did not enter the body of a call: it is offered the call again after a pause, which doubles each time. */
export function refuseBody(state: WorkersState, process: WorkerProcess, call: RemoteCall, reason: string): void {
  const { refused } = state;
  const key = keyOfCall(call);
  const known = refused.get(key) ?? { counts: new Map(), paused: new Set(), last: "" };
  const { worker, instanceId } = process.hello;
  known.last = `the worker "${worker}" (${instanceId}) did not enter its body and reported "${reason}"`;
  const count = (known.counts.get(process) ?? 0) + 1;
  known.counts.set(process, count);
  known.paused.add(process);
  refused.delete(key);
  refused.set(key, known);
  const [oldest] = refused.keys();
  if (refused.size > maxCalls && oldest !== undefined) refused.delete(oldest);
  setTimeout(
    () => {
      known.paused.delete(process);
      if (!state.isDraining) state.calls.takeQueued();
    },
    Math.min(firstPauseMs * 2 ** (count - 1), maxPauseMs),
  ).unref();
}

/** Describes the refusals of a call; undefined if there are none. */
export function refusalsOf({ refused }: WorkersState, call: RemoteCall): string | undefined {
  const known = refused.get(keyOfCall(call));
  if (known === undefined) return undefined;
  const count = [...known.counts.values()].reduce((sum, each) => sum + each, 0);
  return `it was offered ${count} times, and at last ${known.last}`;
}
