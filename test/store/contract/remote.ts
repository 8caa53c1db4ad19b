import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolProgressSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { OpenAsksStep } from "../../../src/call/ports.ts";
import {
  addSession,
  ask,
  callRef,
  completed,
  fenceOf,
  leaseMs,
  type OpenedStore,
  type OpenStore,
  openCall,
  owner,
  recordOf,
  remote,
  running,
  startCall,
  startRemoteCall,
} from "../fixture.ts";

const ref = callRef();
const other = "replica_2";
const next = { ...remote, connection: 2 };
const { resumeMs } = remote;

/** Contract of the steps of calls whose bodies workers run. */
export function remoteContract(open: OpenStore): void {
  async function openStarted(): Promise<OpenedStore> {
    const store = await open();
    await addSession(store);
    await startRemoteCall(store, ref);
    return store;
  }

  test("stores the worker in the step that starts the call", async () => {
    const store = await openStarted();
    expect(await recordOf(store, ref)).toMatchObject({ remote, attempts: 1, version: 2 });
    const atOnce = callRef("call_2");
    const opened = await openCall(store, atOnce, { start: running(atOnce), remote });
    expect(opened).toMatchObject({ remote, attempts: 1 });
    expect(await recordOf(store, atOnce)).toEqual(opened);
    const waiting = callRef("call_3");
    expect((await openCall(store, waiting, { remote })).remote).toBeUndefined();
    expect((await recordOf(store, waiting)).remote).toBeUndefined();
  });

  test("lets the replica take over a call to which its worker has connected, while another one holds the lease", async () => {
    const store = await openStarted();
    const adopted = await store.calls.adoptCall(ref, { ...next, resumeMs: 1_000 }, other, leaseMs);
    expect(adopted).toMatchObject({ owner: other, epoch: 2, version: 3, attempts: 1 });
    expect(adopted?.remote).toEqual({ ...next, resumeMs: 1_000 });
    expect(adopted?.part.state.case).toBe("running");
    expect(await recordOf(store, ref)).toEqual(adopted);
    const late = { ref, guard: { fence: { ref, owner, epoch: 1 } }, part: completed(ref) };
    expect(await store.calls.finishCall(late)).toBeUndefined();
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    expect(await store.calls.renewLeases(other, leaseMs)).toEqual([ref]);
    if (!adopted) throw new Error("the call was not adopted");
    const done = { ref, guard: { fence: fenceOf(adopted) }, part: completed(ref) };
    expect(await store.calls.finishCall(done)).toMatchObject({ state: { case: "completed" } });
  });

  test("lets exactly one of concurrent adoptions over the same connection win", async () => {
    const store = await openStarted();
    const replicas = Array.from({ length: 20 }, (_, index) => `replica_${index}`);
    const adoptions = replicas.map((replica) => store.calls.adoptCall(ref, next, replica, leaseMs));
    const won = (await Promise.all(adoptions)).filter((record) => record !== undefined);
    expect(won).toHaveLength(1);
    expect(await recordOf(store, ref)).toMatchObject({ owner: won[0]?.owner, epoch: 2 });
  });

  test("lets a call be adopted after its lease, and after a restart of the store", async () => {
    const store = await openStarted();
    await store.calls.parkCall({ ref, owner, epoch: 1 }, 0);
    store.advance(leaseMs);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true, remote }]);
    const again = await store.reopen();
    expect(await recordOf(again, ref)).toMatchObject({ owner: "", remote });
    expect(await again.calls.orphans()).toMatchObject([{ ref, started: true, remote }]);
    expect(await again.calls.adoptCall(ref, next, other, leaseMs)).toMatchObject({ owner: other, epoch: 2 });
    expect(await again.calls.orphans()).toEqual([]);
    const late = await again.reopen();
    expect((await recordOf(late, ref)).remote).toEqual(next);
  });

  test("claims a started call of a worker only when the worker did not come back in time", async () => {
    const store = await openStarted();
    const claim = () => store.calls.claimCall(ref, other, leaseMs, 3);
    store.advance(leaseMs + resumeMs - 1);
    expect(await claim()).toBeUndefined();
    store.advance(1);
    const claimed = await claim();
    expect(claimed).toMatchObject({ owner: other, epoch: 2, attempts: 1 });
    expect(claimed?.remote).toBeUndefined();
    // The worker comes back too late: its run of the body is not the call's any more.
    expect(await store.calls.adoptCall(ref, next, owner, leaseMs)).toBeUndefined();
    const fence = { ref, owner: other, epoch: 2 };
    const second = { ...remote, instance: "wrk_2", assignment: "other/ses_root/call_1" };
    const step = { fence, version: claimed?.version ?? 0, part: running(ref), remote: second };
    expect(await store.calls.startCall(step)).toBe("started");
    expect(await recordOf(store, ref)).toMatchObject({ attempts: 2, remote: second });
    expect(await store.calls.adoptCall(ref, next, owner, leaseMs)).toBeUndefined();
  });

  test("waits for a worker also where its call has no owner", async () => {
    const store = await openStarted();
    await store.calls.parkCall({ ref, owner, epoch: 1 }, 0);
    store.advance(resumeMs - 1);
    expect(await store.calls.claimCall(ref, other, leaseMs, 3)).toBeUndefined();
    store.advance(1);
    expect(await store.calls.claimCall(ref, other, leaseMs, 3)).toMatchObject({ epoch: 2 });
  });

  test("gives a call whose body was not entered back, without counting the attempt", async () => {
    const store = await openStarted();
    const queued = { definitionId: "definition", until: store.calls.now() + 5_000 };
    expect(await store.calls.restartCall(ref, remote, queued)).toBe(true);
    const back = await recordOf(store, ref);
    expect(back).toMatchObject({ owner: "", epoch: 2, version: 3, attempts: 0, queuedUntil: queued.until });
    expect(back.remote).toBeUndefined();
    const [orphan] = await store.calls.orphans();
    expect(orphan).toEqual({ ref, started: false, delegated: false, since: store.calls.now(), queued });
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    const claimed = await store.calls.claimCall(ref, other, leaseMs);
    expect(claimed).toMatchObject({ owner: other, epoch: 3 });
    const fence = { ref, owner: other, epoch: 3 };
    const step = { fence, version: claimed?.version ?? 0, part: running(ref), remote: next };
    expect(await store.calls.startCall(step)).toBe("started");
    expect(await recordOf(store, ref)).toMatchObject({ attempts: 1, remote: next });
  });

  const queued = { definitionId: "definition", until: 0 };
  /** Leaves a pending call to wait for a worker. */
  async function queue(store: OpenedStore, forMs: number, asks: OpenAsksStep["asks"] = []): Promise<boolean> {
    const record = await recordOf(store, ref);
    const wait = { queued: { ...queued, until: store.calls.now() + forMs }, dueMs: 0 };
    const step = { fence: fenceOf(record), version: record.version, asks, withdraw: [], message: "", maxOpenAsks: 10 };
    return await store.calls.openAsks({ ...step, ...wait });
  }

  test("lists a call that waits for a worker with its definition and the time of the first wait", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    const until = store.calls.now() + 60_000;
    expect(await queue(store, 60_000)).toBe(true);
    const orphan = { ref, started: false, delegated: false, since: store.calls.now() };
    expect(await store.calls.orphans()).toEqual([{ ...orphan, queued: { ...queued, until } }]);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", queuedUntil: until });
    store.advance(1_000);
    await store.calls.claimCall(ref, owner, leaseMs);
    expect(await store.calls.orphans()).toEqual([]);
    await queue(store, 60_000);
    expect(await store.calls.orphans()).toMatchObject([{ queued: { until } }]);
    const again = await store.reopen();
    expect(await again.calls.orphans()).toMatchObject([{ ref, queued: { ...queued, until } }]);
  });

  test("accepts a call and lets it wait for a worker in the same step, unless it repeats others too often", async () => {
    const store = await open();
    await addSession(store);
    const progress = create(ToolProgressSchema, { callId: ref.callId, title: "Waiting for a worker" });
    const until = store.calls.now() + 60_000;
    const waiting = { queued: { ...queued, until }, progress, maxRepeats: 0 };
    const opened = await openCall(store, ref, waiting);
    expect(opened).toMatchObject({ owner: "", version: 1, attempts: 0, queuedUntil: until });
    expect(await recordOf(store, ref)).toEqual(opened);
    const orphan = { ref, started: false, delegated: false, since: store.calls.now() };
    expect(await store.calls.orphans()).toEqual([{ ...orphan, queued: waiting.queued }]);
    const { events } = await store.calls.readLog(ref.sessionId, 0, 100_000);
    expect(events.map(({ event }) => event.case)).toEqual(["part", "progress"]);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    const repeated = callRef("call_2");
    const held = await openCall(store, repeated, waiting);
    expect(held).toMatchObject({ owner, repeats: 1 });
    expect(held.queuedUntil).toBeUndefined();
    expect(await recordOf(store, repeated)).toEqual(held);
    expect(await store.calls.claimCall(ref, other, leaseMs)).toMatchObject({ owner: other, version: 2 });
    const again = await store.reopen();
    expect(await recordOf(again, ref)).toMatchObject({ queuedUntil: until });
  });

  test("forgets the wait for a worker when the call asks, and when it starts", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    await queue(store, 60_000);
    await store.calls.claimCall(ref, owner, leaseMs);
    await queue(store, 60_000, [ask(ref, "per_1", store)]);
    expect((await recordOf(store, ref)).queuedUntil).toBeUndefined();
    await store.calls.claimCall(ref, owner, leaseMs);
    await queue(store, 5_000);
    const claimed = await store.calls.claimCall(ref, owner, leaseMs);
    expect(claimed?.queuedUntil).toBe(store.calls.now() + 5_000);
    if (!claimed) throw new Error("the call was not claimed");
    await store.calls.startCall({ fence: fenceOf(claimed), version: claimed.version, part: running(ref), remote });
    expect((await recordOf(store, ref)).queuedUntil).toBeUndefined();
  });

  test("resumes no call for a worker that was started without one", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    expect(await store.calls.adoptCall(ref, next, other, leaseMs)).toBeUndefined();
    expect(await store.calls.restartCall(ref, next, queued)).toBe(false);
  });
}
