import { create, equals } from "@bufbuild/protobuf";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import {
  type WorkerProcess as ListedWorker,
  WorkerProcessSchema,
} from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { type WorkerDirectory, workerIdOf } from "../../core/worker-directory.ts";
import type { WorkerProcess } from "./worker-process.ts";

/** The worker processes of all replicas: this one announces its own in the store. */
export type Directory = ReturnType<typeof createDirectory>;

/** Parts with which a directory is made. */
interface DirectoryParts {
  readonly store: WorkerDirectory;
  readonly replica: string;
  /** The processes of this replica. */
  processes(): Iterable<WorkerProcess>;
  /** Called for the ID of a process that another replica has with this connection, which is the later one. */
  superseded(id: string, connection: number): void;
  now(): number;
  readonly log: Logger;
}

/** Time for which the entries of a replica are listed after it announced itself last. */
const holdMs = 30_000;
/** Time after which an entry is announced again although nothing but its last sign of life has changed. */
const repeatMs = 20_000;

/** Time for which changes are collected. */
const togetherMs = 250;

/** Creates the directory; nothing is announced yet. */
export function createDirectory({ store, replica, processes, superseded, now, log }: DirectoryParts) {
  /** Entries as announced, by ID. */
  const announced = new Map<string, { entry: ListedWorker; time: number }>();
  let hasLeft = false;
  let isPlanned = false;
  // One step at a time, so that none overtakes a later one.
  let steps: Promise<unknown> = Promise.resolve();

  const own = () => [...processes()].map((process) => entryOf(process, replica));

  function freshOf(entries: readonly ListedWorker[]): Set<string> {
    const ids = entries
      .filter(({ principal, instanceId, connection }) => {
        const before = announced.get(workerIdOf(principal, instanceId));
        return before?.entry.connection !== connection;
      })
      .map(({ principal, instanceId }) => workerIdOf(principal, instanceId));
    return new Set(ids);
  }

  function inTurn(step: () => Promise<void>): Promise<void> {
    const done = steps.then(step);
    steps = done.catch(() => undefined);
    return done;
  }

  async function announceChanges(): Promise<void> {
    if (hasLeft) return;
    isPlanned = false;
    const changed = own().filter((entry) => {
      const before = announced.get(workerIdOf(entry.principal, entry.instanceId));
      return (
        !before || before.time + repeatMs <= now() || !equals(WorkerProcessSchema, unseen(before.entry), unseen(entry))
      );
    });
    const time = now();
    const send = (entries: readonly ListedWorker[], isAll: boolean) =>
      store.announceWorkers({ replica, processes: entries, fresh: freshOf(entries), isAll, holdMs });
    let sent = changed;
    let staying = await send(changed, false);
    if (staying === undefined) {
      sent = own();
      staying = await send(sent, true);
    }
    for (const entry of sent) announced.set(workerIdOf(entry.principal, entry.instanceId), { entry, time });
    for (const [id, connection] of staying ?? []) superseded(id, connection);
  }

  return {
    /** Announces what has changed, and that this replica runs; to be called every few seconds. */
    announce: (): Promise<void> => inTurn(announceChanges),
    /** Announces what has changed soon; failures are left to the next `announce`. */
    changed(): void {
      if (isPlanned) return;
      isPlanned = true;
      // Of many workers that connect at once.
      setTimeout(() => {
        inTurn(announceChanges).catch((error: unknown) => log.debug("workers could not be announced", { error }));
      }, togetherMs).unref();
    },
    /** Removes a process that does not return. */
    forget(process: WorkerProcess): void {
      if (hasLeft) return;
      const entry = entryOf(process, replica);
      announced.delete(workerIdOf(entry.principal, entry.instanceId));
      inTurn(() => store.forgetWorker(entry)).catch((error: unknown) =>
        log.warn("a worker that is gone is listed for a while", { error, principal: entry.principal }),
      );
    },
    /** Returns the processes of all replicas, sorted by fleet; those of this one as they are now. */
    async list(): Promise<ListedWorker[]> {
      const all = new Map(own().map((entry) => [workerIdOf(entry.principal, entry.instanceId), entry]));
      for (const entry of await store.listWorkers()) {
        const known = all.get(workerIdOf(entry.principal, entry.instanceId));
        if (entry.replica !== replica && (known?.connection ?? 0n) < entry.connection)
          all.set(workerIdOf(entry.principal, entry.instanceId), entry);
      }
      return [...all.values()].toSorted((one, other) => (fleetOrder(one) < fleetOrder(other) ? -1 : 1));
    },
    /** Removes the entries of this replica. */
    leave: (): Promise<void> =>
      inTurn(async () => {
        hasLeft = true;
        await store.removeWorkers(replica);
      }),
  };
}

/** Returns a process as overseers see it. */
export function entryOf(
  { hello, principal, connection, workspaces, tools, capacity, taken, isDraining, link, seen }: WorkerProcess,
  replica: string,
): ListedWorker {
  const { instanceId, worker, buildId, generation, sdk } = hello;
  return create(WorkerProcessSchema, {
    ...{ instanceId, worker, buildId, generation, sdk, principal, tools: [...tools], capacity, seen, replica },
    workspaces: [...workspaces],
    running: taken.size,
    draining: isDraining,
    connected: link !== undefined,
    connection: BigInt(connection),
  });
}

/** Checks if a process brings a definition. */
export function brings({ tools }: Pick<ListedWorker, "tools">, definition: string): boolean {
  return tools.some(
    ({ definitionId, registration }) => definitionId === definition && registration === ToolRegistration.REGISTERED,
  );
}

const unseen = (entry: ListedWorker): ListedWorker => ({ ...entry, seen: 0 });

/** Returns a unique key that sorts processes by fleet. */
export function fleetOrder({ worker, principal, instanceId }: ListedWorker): string {
  return `${worker} ${principal} ${instanceId}`;
}
