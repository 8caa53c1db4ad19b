import { create } from "@bufbuild/protobuf";
import {
  type WorkerProcess as ListedWorker,
  type WorkerFleet,
  WorkerFleetSchema,
} from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { DeclaredFleet } from "./definitions.ts";
import type { WorkersState } from "./state.ts";

/** Returns the fleets: those of the stored declarations, and those of which no tool could be registered. */
export function fleetsOf({ definitions, calls }: WorkersState, workers: readonly ListedWorker[]): WorkerFleet[] {
  const fleets = new Map(definitions.fleets().map((fleet) => [keyOf(fleet), fleet]));
  for (const each of workers) {
    const { worker, principal, seen } = each;
    const known: DeclaredFleet = fleets.get(keyOf(each)) ?? { worker, principal, definitions: [], seen };
    fleets.set(keyOf(each), { ...known, seen: Math.max(known.seen, seen) });
  }
  return [...fleets]
    .toSorted(([one], [other]) => (one < other ? -1 : 1))
    .map(([, { worker, principal, definitions: own, seen }]) =>
      create(WorkerFleetSchema, {
        ...{ worker, principal, seen },
        tools: [...new Set(own.map(({ name }) => name))].toSorted(),
        waiting: [...new Set(own.map(({ id }) => id))].reduce((sum, id) => sum + calls.countQueued(id), 0),
      }),
    );
}

const keyOf = ({ worker, principal }: Pick<DeclaredFleet, "worker" | "principal">) => `${worker} ${principal}`;
