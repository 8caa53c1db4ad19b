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

/** Opens a session with a call that asked, ran and ended. */
async function openEnded(open: OpenStore): Promise<OpenedStore> {
  const store = await open();
  await addSession(store);
  const fence = await startCall(store, ref);
  await openAsks(store, ref, ["per_1"]);
  await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "the output") });
  return store;
}

/** Contract of `Retention`. */
export function retentionContract(open: OpenStore): void {
  test("keeps records within their retention", async () => {
    const store = await openEnded(open);
    store.advance(day - 1);
    const before = await logOf(store);
    await store.calls.sweep();
    expect(await logOf(store)).toEqual(before);
    expect((await store.calls.getCall("ses_root", "call_1"))?.expired).toBeUndefined();
  });

  test("removes a log a day after its last event, and continues its sequence numbers", async () => {
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

  test("replaces a call by its tombstone a week after its end", async () => {
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

  test("keeps the part, the asks, the log and the outputs of an open call", async () => {
    const store = await open();
    await addSession(store);
    await store.outputs.append("ses_root", "out_1", new Uint8Array([1]));
    await openAskedCall(store, ref, ["per_1"]);
    const before = await logOf(store);
    store.advance(40 * day);
    expect(await store.calls.sweep()).toEqual({ outputs: [] });
    expect(await logOf(store)).toEqual(before);
    expect(await store.calls.getCall("ses_root", "call_1")).toMatchObject({ part: { permissionIds: ["per_1"] } });
    expect(await store.calls.getSession("ses_root")).toBeDefined();
  });

  test("removes a session a month after its last event", async () => {
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

  test("keeps a tree as long as one of its sessions is in use", async () => {
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

  test("removes more than one portion in one sweep", async () => {
    const store = await open();
    await addSession(store);
    const refs = Array.from({ length: 450 }, (_, index) => callRef(`call_${index}`));
    await Promise.all(refs.map((each) => openCall(store, each)));
    const end = (each: typeof ref) =>
      store.calls.finishCall({ ref: each, guard: { version: 1 }, part: completed(each) });
    await Promise.all(refs.map(end));
    store.advance(7 * day);
    await store.calls.sweep();
    const calls = await store.calls.listCalls({ sessionId: "ses_root", limit: 1_000 });
    expect(calls.filter(({ expired }) => expired)).toHaveLength(450);
  });

  test("lists on after a call that was removed since its page was read", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, callRef("call_c"));
    const after = await openCall(store, callRef("call_b"));
    await openCall(store, callRef("call_a"));
    await store.calls.finishCall({ ref: after.ref, guard: { version: 1 }, part: completed(after.ref) });
    store.advance(30 * day);
    await store.calls.sweep();
    for (const open of [false, true]) {
      const list = async (filter: object) =>
        (await store.calls.listCalls({ sessionId: "ses_root", open, limit: 10, ...filter })).map(
          ({ ref }) => ref.callId,
        );
      expect([await list({}), await list({ after })]).toEqual([["call_c", "call_a"], ["call_a"]]);
    }
  });

  test("returns outputs a week after their last write", async () => {
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
