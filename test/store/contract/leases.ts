import { expect, test } from "vitest";
import {
  addSession,
  answer,
  ask,
  callRef,
  childPart,
  completed,
  day,
  failed,
  fenceOf,
  leaseMs,
  type OpenStore,
  openAsks,
  openCall,
  openChild,
  openWaitingCall,
  owner,
  recordOf,
  running,
  settled,
  startCall,
} from "../fixture.ts";

const ref = callRef();

/** Contract of `LeaseStore`. */
export function leasesContract(open: OpenStore): void {
  test("does not list a call with a live lease as orphaned", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    store.advance(leaseMs - 1);
    expect(await store.calls.orphans()).toEqual([]);
  });

  test("lists a call as orphaned from the time at which its lease lapsed", async () => {
    const store = await open();
    await addSession(store);
    const lapse = store.calls.now() + leaseMs;
    await openCall(store, ref);
    store.advance(leaseMs + 5_000);
    const [orphan, ...others] = await store.calls.orphans();
    expect(orphan).toEqual({ ref, started: false, delegated: false, since: lapse });
    expect(others).toEqual([]);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "" });
  });

  test("lists a parked call as orphaned once its last child has ended, however that ended", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    const [first, second] = [callRef("call_1.1"), callRef("call_1.2")];
    await openChild(store, first, ref.callId);
    await openChild(store, second, ref.callId);
    await openAsks(store, second, ["per_1"]);
    expect(await store.calls.parkCall(fence, 4 * leaseMs)).toBe(true);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", version: 3, part: { state: { case: "running" } } });
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([first, second]);
    const orphans = async () => (await store.calls.orphans()).map((orphan) => orphan.ref.callId);
    const end = { ref: first, guard: { version: 1 }, part: childPart(failed(first), ref.callId) };
    await store.calls.finishCall(end);
    expect(await orphans()).toEqual([]);
    store.advance(2 * leaseMs);
    const rejected = { ref: second, version: 2, part: childPart(failed(second), ref.callId) };
    await store.permissions.settle(await answer(store, second, "per_1", { calls: [rejected] }));
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true, since: store.calls.now() }]);

    const resumed = await store.calls.resumeCall(ref, "replica_2", leaseMs);
    expect(resumed).toMatchObject({ owner: "replica_2", epoch: 2, version: 4, attempts: 1 });
    expect(resumed?.part.state.case).toBe("running");
    expect(await orphans()).toEqual([]);
    const late = { ref, guard: { fence }, part: completed(ref) };
    expect(await store.calls.finishCall(late)).toBeUndefined();
    if (!resumed) throw new Error("the call was not resumed");
    const done = { ref, guard: { fence: fenceOf(resumed) }, part: completed(ref) };
    expect(await store.calls.finishCall(done)).toMatchObject({ state: { case: "completed" } });
  });

  test("lists a parked call as orphaned after its time, and a started one after a restart", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    await openChild(store, callRef("call_1.1"), ref.callId);
    await store.calls.parkCall(fence, leaseMs / 2);
    expect(await store.calls.orphans()).toEqual([]);
    store.advance(leaseMs / 2);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true }]);
    const reopened = await store.reopen();
    expect(await reopened.calls.resumeCall(ref, "replica_2", leaseMs)).toMatchObject({ epoch: 2, attempts: 1 });
  });

  test("parks a started call without children only as one that is orphaned at once", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    expect(await store.calls.parkCall(fence, leaseMs)).toBe(false);
    expect(await store.calls.parkCall(fence, 0)).toBe(true);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", part: { state: { case: "running" } } });
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true, since: store.calls.now() }]);
  });

  test("lists a call that waits for an ask as orphaned once its last ask is settled, or if it was started", async () => {
    const store = await open();
    await addSession(store);
    const asking = callRef("call_asking");
    await openWaitingCall(store, asking, ["per_1", "per_2"]);
    await startCall(store, callRef("call_started"));
    await openAsks(store, callRef("call_started"), ["per_3"]);
    store.advance(leaseMs);
    const orphans = async () => (await store.calls.orphans()).map((orphan) => [orphan.ref.callId, orphan.started]);
    expect(await orphans()).toEqual([["call_started", true]]);
    await store.permissions.settle(await answer(store, asking, "per_1"));
    expect(await orphans()).toEqual([["call_started", true]]);
    store.advance(1);
    await store.permissions.settle(await answer(store, asking, "per_2"));
    expect(await orphans()).toEqual([
      ["call_started", true],
      ["call_asking", false],
    ]);
  });

  test.each([150, 5_000])(
    "lists exactly the answered and the started call of %i whose replica is lost",
    async (count) => {
      const store = await open();
      const roots = Array.from({ length: 10 }, (_, index) => `ses_${index}`);
      for (const root of roots) await addSession(store, root);
      const refs = Array.from({ length: count }, (_, index) => {
        const root = roots[index % roots.length] ?? "";
        return callRef(`call_${index}`, root, root);
      });
      for (let from = 0; from < count; from += 500)
        await Promise.all(
          refs.slice(from, from + 500).map(async (ref) => {
            const fence = fenceOf(await openCall(store, ref, { maxOpenCalls: count }));
            const asks = [ask(ref, `per_${ref.callId}`, store)];
            const step = { fence, version: 1, asks, withdraw: [], message: "", maxOpenAsks: count, dueMs: day };
            await store.calls.openAsks(step);
          }),
        );
      store.advance(1);
      const running = callRef("call_started", "ses_0", "ses_0");
      await startCall(store, running);
      store.advance(leaseMs);
      expect(await store.calls.orphans()).toMatchObject([{ ref: running, started: true }]);
      store.advance(1);
      const answered = callRef(
        `call_${count - 1}`,
        roots[(count - 1) % roots.length],
        roots[(count - 1) % roots.length],
      );
      await store.permissions.settle(await answer(store, answered, `per_call_${count - 1}`));
      expect((await store.calls.orphans()).map(({ ref }) => ref)).toEqual([running, answered]);
    },
  );

  test("lists an orphan as orphaned since the settlement of its asks", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1"]);
    store.advance(60_000);
    const settlement = {
      root: "ses_root",
      askId: "per_1",
      settled: [settled(ref, "per_1")],
      expired: false,
      grants: [],
    };
    await store.permissions.settle({ ...settlement, calls: [{ ref, version: 2 }] });
    expect(await store.calls.orphans()).toMatchObject([{ ref, since: store.calls.now() }]);
  });

  test("lists a call that waits for an ask as orphaned when its time is over", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1"]);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", part: { permissionIds: ["per_1"] } });
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    store.advance(day - 1);
    expect(await store.calls.orphans()).toEqual([]);
    store.advance(1);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: false }]);
  });

  test("lists a call that waits for an ask not as orphaned when the store is opened again", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1"]);
    const again = await store.reopen();
    expect(await again.calls.orphans()).toEqual([]);
    await again.permissions.settle(await answer(again, ref, "per_1"));
    expect(await again.calls.orphans()).toMatchObject([{ ref, started: false }]);
    expect(await again.calls.claimCall(ref, "replica_2", leaseMs)).toMatchObject({ epoch: 2 });
  });

  test("renews a lease", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    await openCall(store, callRef("call_other"), { owner: "replica_2" });
    store.advance(10_000);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([ref]);
    store.advance(10_000);
    expect((await store.calls.orphans()).map(({ ref }) => ref.callId)).toEqual(["call_other"]);
  });

  test("renews a lapsed lease as long as the call was not claimed", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    await openCall(store, callRef("call_taken"));
    store.advance(leaseMs);
    expect(await store.calls.startCall({ fence, version: 1, part: running(ref) })).toBe("fenced");
    await store.calls.claimCall(callRef("call_taken"), "replica_2", leaseMs);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([ref]);
    expect(await store.calls.startCall({ fence, version: 1, part: running(ref) })).toBe("started");
  });

  test("claims a call with a lapsed lease under the next epoch", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs);
    expect(claimed).toMatchObject({ owner: "replica_2", epoch: 2, version: 2, part: { state: { case: "pending" } } });
    const theirs = { ...fence, owner: "replica_2", epoch: 2 };
    expect(await store.calls.startCall({ fence: theirs, version: 2, part: running(ref) })).toBe("started");
  });

  test("lets exactly one of concurrent claims win", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    store.advance(leaseMs);
    const claims = Array.from({ length: 20 }, (_, index) => store.calls.claimCall(ref, `replica_${index}`, leaseMs));
    const won = (await Promise.all(claims)).filter((record) => record !== undefined);
    expect(won).toHaveLength(1);
    expect(await recordOf(store, ref)).toMatchObject({ owner: won[0]?.owner, epoch: 2 });
  });

  test("claims a started call to be started again, if its body may be entered again", async () => {
    const store = await open();
    await addSession(store);
    const first = await startCall(store, ref);
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs, 2);
    expect(claimed).toMatchObject({ owner: "replica_2", epoch: 2, attempts: 1, part: { state: { case: "running" } } });
    const fence = { ...first, owner: "replica_2", epoch: 2 };
    const version = claimed?.version ?? 0;
    expect(await store.calls.startCall({ fence, version, part: running(ref) })).toBe("started");
    expect(await recordOf(store, ref)).toMatchObject({ attempts: 2 });
  });

  test("lets the owner end a call with a lapsed lease that was not claimed", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    store.advance(leaseMs);
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) })).toBeDefined();
    expect(await store.calls.orphans()).toEqual([]);
  });

  test("releases the calls that are not started", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    await startCall(store, callRef("call_started"));
    await openCall(store, callRef("call_other"), { owner: "replica_2" });
    await store.calls.releaseCalls(owner);
    expect(await store.calls.orphans()).toMatchObject([{ ref, since: store.calls.now() }]);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([callRef("call_started")]);
    expect(await store.calls.claimCall(ref, "replica_2", leaseMs)).toMatchObject({ epoch: 2 });
  });
}
