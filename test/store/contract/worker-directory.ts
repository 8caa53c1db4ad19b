import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { type WorkerProcess, WorkerProcessSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { workerIdOf } from "../../../src/core/worker-directory.ts";
import type { OpenedStore, OpenStore } from "../fixture.ts";

const [here, there] = ["replica_1", "replica_2"];
const holdMs = 30_000;

function worker(instanceId: string, fields: MessageInitShape<typeof WorkerProcessSchema> = {}): WorkerProcess {
  const tool = { name: "ci_echo", definitionId: "def_1", registration: ToolRegistration.REGISTERED };
  const facts = { worker: "ci", principal: "ci-worker", buildId: "abc", generation: 2n, running: 1, tools: [tool] };
  return create(WorkerProcessSchema, { instanceId, connection: 1n, replica: here, seen: 5, ...facts, ...fields });
}

const at = (replica: string, instanceId: string, connection: bigint) => worker(instanceId, { replica, connection });

async function listed({ workerDirectory }: OpenedStore): Promise<WorkerProcess[]> {
  const all = await workerDirectory.listWorkers();
  return all.toSorted((one, other) => (one.instanceId < other.instanceId ? -1 : 1));
}

/** Announces processes as all that a replica has, or only as those that changed; their connections are new unless it says otherwise. */
function announce(
  { workerDirectory }: OpenedStore,
  replica: string,
  processes: readonly WorkerProcess[],
  isAll = true,
  isFresh = true,
) {
  const fresh = new Set(isFresh ? processes.map((each) => workerIdOf(each.principal, each.instanceId)) : []);
  return workerDirectory.announceWorkers({ replica, processes, fresh, isAll, holdMs });
}

/** Contract of `WorkerDirectory`. */
export function workerDirectoryContract(open: OpenStore): void {
  test("lists the processes of all replicas as they announced them", async () => {
    const store = await open();
    await announce(store, here, [worker("wrk_1"), worker("wrk_2")]);
    await announce(store, there, [at(there, "wrk_3", 1n)]);
    expect(await listed(store)).toEqual([worker("wrk_1"), worker("wrk_2"), at(there, "wrk_3", 1n)]);
    const changed = worker("wrk_1", { running: 4, draining: true });
    expect(await announce(store, here, [changed], false)).toEqual(new Map());
    expect(await listed(store)).toEqual([changed, worker("wrk_2"), at(there, "wrk_3", 1n)]);
  });

  test("keeps the entry of the higher connection, in whatever order the replicas announce theirs", async () => {
    const store = await open();
    await announce(store, here, [at(here, "wrk_1", 1n)]);
    await announce(store, there, [at(there, "wrk_1", 10n)]);
    await announce(store, here, [at(here, "wrk_1", 9n)]);
    expect(await listed(store)).toEqual([at(there, "wrk_1", 10n)]);
  });

  test("of two equal connections at two replicas the one announced later stays, and the other replica learns of it", async () => {
    const store = await open();
    const mine = at(here, "wrk_1", 3n);
    await announce(store, here, [mine]);
    expect(await announce(store, there, [at(there, "wrk_1", 3n)])).toEqual(new Map());
    expect(await announce(store, here, [mine], false, false)).toEqual(new Map([["ci-worker wrk_1", 3]]));
    expect(await listed(store)).toEqual([at(there, "wrk_1", 3n)]);
    expect(await announce(store, here, [at(here, "wrk_1", 4n)])).toEqual(new Map());
    expect(await listed(store)).toEqual([at(here, "wrk_1", 4n)]);
  });

  test("takes processes of two tokens with one instance ID as two", async () => {
    const store = await open();
    const other = worker("wrk_1", { principal: "other", connection: 7n });
    await announce(store, here, [worker("wrk_1"), other]);
    expect((await listed(store)).map(({ principal }) => principal).toSorted()).toEqual(["ci-worker", "other"]);
  });

  test("forgets a process only as its replica knows it", async () => {
    const store = await open();
    const { forgetWorker } = store.workerDirectory;
    await announce(store, there, [at(there, "wrk_1", 2n)]);
    await forgetWorker(at(here, "wrk_1", 1n));
    await forgetWorker(at(here, "wrk_1", 2n));
    await forgetWorker(at(there, "wrk_2", 2n));
    expect(await listed(store)).toEqual([at(there, "wrk_1", 2n)]);
    await forgetWorker(at(there, "wrk_1", 2n));
    expect(await listed(store)).toEqual([]);
  });

  test("lists no process of a replica that has not announced itself in time, and asks it for all when it does", async () => {
    const store = await open();
    await announce(store, here, [at(here, "wrk_1", 9n)]);
    await announce(store, there, [at(there, "wrk_2", 1n)]);
    store.advance(holdMs - 1);
    expect(await announce(store, there, [], false)).toEqual(new Map());
    expect(await listed(store)).toEqual([at(here, "wrk_1", 9n), at(there, "wrk_2", 1n)]);
    store.advance(1);
    expect(await listed(store)).toEqual([at(there, "wrk_2", 1n)]);
    expect(await announce(store, here, [worker("wrk_1")], false)).toBeUndefined();
    // What it announced before is gone, also for a lower connection of the same process.
    expect(await listed(store)).toEqual([at(there, "wrk_2", 1n)]);
    await announce(store, there, [at(there, "wrk_1", 1n)]);
    expect(await listed(store)).toEqual([at(there, "wrk_1", 1n), at(there, "wrk_2", 1n)]);
  });

  test("removes the processes of a replica that leaves", async () => {
    const store = await open();
    await announce(store, here, [worker("wrk_1")]);
    await announce(store, there, [at(there, "wrk_2", 1n)]);
    await store.workerDirectory.removeWorkers(here);
    expect(await listed(store)).toEqual([at(there, "wrk_2", 1n)]);
    expect(await announce(store, here, [], false)).toBeUndefined();
    expect(await listed(store)).toEqual([at(there, "wrk_2", 1n)]);
  });

  test("stores more processes than one step takes", async () => {
    const store = await open();
    const many = Array.from({ length: 250 }, (_, index) => worker(`wrk_${String(index).padStart(3, "0")}`));
    await announce(store, here, many);
    expect(await listed(store)).toEqual(many);
  });
}
