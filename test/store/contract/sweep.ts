import { expect, test } from "vitest";
import {
  addSession,
  addTree,
  callRef,
  callSpec,
  completed,
  day,
  grant,
  leaseMs,
  logOf,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openAsks,
  openCall,
  pending,
  saveGrant,
  startCall,
} from "../fixture.ts";

const ref = callRef();

/** A session with a call that asked, ran and ended. */
async function openEnded(open: OpenStore): Promise<OpenedStore> {
  const store = await open();
  await addSession(store);
  const fence = await startCall(store, ref);
  await openAsks(store, ref, ["per_1"]);
  await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "the output") });
  return store;
}

export function sweepContract(open: OpenStore): void {
  test("what is not past its time stays", async () => {
    const store = await openEnded(open);
    store.advance(day - 1);
    const before = await logOf(store);
    await store.calls.sweep();
    expect(await logOf(store)).toEqual(before);
    expect((await store.calls.getCall("ses_root", "call_1"))?.expired).toBeUndefined();
  });

  test("a day after the last event the log goes, and its numbers go on", async () => {
    const store = await openEnded(open);
    store.advance(day / 2);
    await openCall(store, callRef("call_2"));
    store.advance(day - 1);
    await store.calls.sweep();
    expect(await logOf(store)).toHaveLength(6);
    store.advance(1);
    await store.calls.sweep();
    expect(await store.calls.readLog("ses_root", 0, 1_000)).toEqual({ events: [], firstSeq: 7, lastSeq: 6 });
    expect((await openCall(store, callRef("call_3"))).openedSeq).toBe(7);
    expect(await logOf(store, "ses_root", 6)).toHaveLength(1);
  });

  test("a week after its end only the tombstone of a call is left", async () => {
    const store = await openEnded(open);
    store.advance(7 * day);
    await store.calls.sweep();
    const { record, created } = await store.calls.openCall({
      ref,
      part: pending(ref),
      spec: callSpec({ requestDigest: "other" }),
      owner: "replica_2",
      leaseMs,
      maxOpenCalls: 10,
    });
    expect(created).toBe(false);
    expect(record).toMatchObject({ expired: true, spec: { requestDigest: "digest" }, part: { callId: "call_1" } });
    expect(record.part.state).toMatchObject({ case: "completed", value: { output: "", input: {} } });
    expect(await store.permissions.getAsk("ses_root", "per_1")).toBeUndefined();
  });

  test("a call that is still open keeps its part and its asks", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1"]);
    store.advance(40 * day);
    await store.calls.sweep();
    expect(await store.calls.getCall("ses_root", "call_1")).toMatchObject({ part: { permissionIds: ["per_1"] } });
    expect(await store.calls.getSession("ses_root")).toBeDefined();
  });

  test("a month after its last event nothing of a session is left", async () => {
    const store = await openEnded(open);
    await saveGrant(store, grant("grt_1"));
    await store.calls.finishCall({
      ref: callRef("call_of_grt_1"),
      guard: { version: 3 },
      part: completed(callRef("call_of_grt_1")),
    });
    await store.calls.recordRead("ses_root", "/w/a", "1");
    const session = { root: "ses_root", sessionId: "ses_root" };
    await store.calls.setState(session, "todos", "[]");
    store.advance(30 * day - 1);
    await store.calls.sweep();
    expect(await store.calls.getCall("ses_root", "call_1")).toBeDefined();
    store.advance(1);
    await store.calls.sweep();
    expect(await store.calls.getCall("ses_root", "call_1")).toBeUndefined();
    expect(await store.calls.getSession("ses_root")).toBeUndefined();
    expect(await store.calls.getRead("ses_root", "/w/a")).toBeUndefined();
    expect(await store.calls.getState(session, "todos")).toBeUndefined();
    expect(await store.permissions.getGrant("grt_1")).toBeUndefined();
    await addSession(store);
    expect((await openCall(store, ref)).openedSeq).toBe(1);
  });

  test("a tree stays as long as one of its sessions is in use", async () => {
    const store = await open();
    await addTree(store);
    store.advance(20 * day);
    await openCall(store, callRef("call_1", "ses_grandchild"));
    await store.calls.finishCall({
      ref: callRef("call_1", "ses_grandchild"),
      guard: { version: 1 },
      part: completed(callRef("call_1", "ses_grandchild")),
    });
    store.advance(20 * day);
    await store.calls.sweep();
    expect(await store.calls.listSessions({ limit: 10 })).toHaveLength(3);
    store.advance(10 * day);
    await store.calls.sweep();
    expect(await store.calls.listSessions({ limit: 10 })).toEqual([]);
  });

  test("more than one portion is removed at once", async () => {
    const store = await open();
    await addSession(store);
    const refs = Array.from({ length: 450 }, (_, index) => callRef(`call_${index}`));
    await Promise.all(refs.map((each) => openCall(store, each)));
    const end = (each: typeof ref) =>
      store.calls.finishCall({ ref: each, guard: { version: 1 }, part: completed(each) });
    await Promise.all(refs.map(end));
    store.advance(7 * day);
    await store.calls.sweep();
    const left = await store.calls.listCalls({ sessionId: "ses_root", limit: 1_000 });
    expect(left.filter(({ expired }) => expired)).toHaveLength(450);
  });

  test("outputs are named a week after they were last written to", async () => {
    const store = await open();
    await addSession(store);
    await store.outputs.append("ses_root", "out_1", new Uint8Array([1]));
    store.advance(6 * day);
    expect(await store.calls.sweep()).toEqual({ outputs: [] });
    store.advance(2 * day);
    expect(await store.calls.sweep()).toEqual({ outputs: [{ root: "ses_root", id: "out_1" }] });
    await store.outputs.remove("ses_root", "out_1");
    expect(await store.calls.sweep()).toEqual({ outputs: [] });
  });
}
