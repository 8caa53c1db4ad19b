import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { DecisionKind, DecisionRecordSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { CallRecord } from "../../../src/call/ports.ts";
import {
  addSession,
  answer,
  ask,
  askMs,
  callRef,
  callSpec,
  completed,
  day,
  delegation,
  failed,
  fenceOf,
  kinds,
  leaseMs,
  logOf,
  type OpenedStore,
  type OpenStore,
  openCall,
  owner,
  pending,
  recordOf,
  refusal,
  running,
} from "../fixture.ts";

const ref = callRef();
const other = "replica_2";
const collectMs = delegation.collectMs;
const reportMs = 300_000;
const report = create(DecisionRecordSchema, { kind: DecisionKind.REPORTED, sessionId: "ses_root", callId: "call_1" });

/** Contract of calls that their host runs: they wait and run without an owner. */
export function delegatedContract(open: OpenStore): void {
  test("lets a delegated call wait without an owner once it has opened asks", async () => {
    const store = await open();
    await openWaiting(store);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", part: { permissionIds: ["per_1"] } });
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    store.advance(askMs - 1);
    expect(await store.calls.orphans()).toEqual([]);
  });

  test("lets any replica claim a delegated call without an owner, and one of them only", async () => {
    const store = await open();
    await openWaiting(store);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    const claims = await Promise.all(
      [owner, other, "replica_3"].map((each) => store.calls.claimCall(ref, each, leaseMs)),
    );
    expect(claims.filter((claim) => claim !== undefined)).toMatchObject([{ epoch: 2 }]);
  });

  test("lists an approved delegated call as orphaned when it was not collected in time", async () => {
    const store = await open();
    await openWaiting(store);
    store.advance(1_000);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    store.advance(collectMs - 1);
    expect(await store.calls.orphans()).toEqual([]);
    store.advance(1);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: false }]);
  });

  test("ends the lease of a delegated call with its start, and lists it as orphaned when no report came", async () => {
    const store = await open();
    const started = await openStarted(store);
    expect(started).toMatchObject({ owner: "", attempts: 1, assignment: "hash_1" });
    expect(await store.calls.claimCall(ref, other, leaseMs)).toBeUndefined();
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    store.advance(reportMs - 1);
    expect(await store.calls.orphans()).toEqual([]);
    store.advance(1);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true }]);
  });

  test("accepts and starts a delegated call in one step, without an owner", async () => {
    const store = await open();
    await addSession(store);
    const delegated = { assignment: "hash_1", reportMs };
    const spec = callSpec({ delegated: delegation });
    const record = await openCall(store, ref, { start: running(ref), spec, delegated });
    expect(record).toMatchObject({ owner: "", attempts: 1, version: 2, assignment: "hash_1" });
    expect(await recordOf(store, ref)).toEqual(record);
    expect(await store.calls.findAssigned("hash_1")).toEqual(record);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    // A repeated call is accepted only: it may ask.
    const second = callRef("call_2");
    const repeated = { start: running(second), spec, maxRepeats: 0, delegated: { assignment: "hash_2", reportMs } };
    expect(await openCall(store, second, repeated)).toMatchObject({ owner, attempts: 0 });
    expect(await store.calls.findAssigned("hash_2")).toBeUndefined();
    store.advance(reportMs);
    expect(await store.calls.orphans()).toContainEqual(expect.objectContaining({ ref, started: true }));
  });

  test("finds the open delegated calls of a session by their request, in the order of acceptance", async () => {
    const store = await open();
    await addSession(store);
    await addSession(store, "ses_other");
    const request = (requestDigest: string) => callSpec({ requestDigest, delegated: delegation });
    const accepted: [callId: string, sessionId: string, spec: CallRecord["spec"]][] = [
      ["call_b", "ses_root", request("d1")],
      ["call_a", "ses_root", request("d1")],
      ["call_c", "ses_root", request("d2")],
      ["call_d", "ses_root", callSpec({ requestDigest: "d1" })],
      ["call_e", "ses_other", request("d1")],
      ["call_f", "ses_root", request("d1")],
    ];
    for (const [callId, id, spec] of accepted) await openCall(store, callRef(callId, id, id), { spec });
    const ended = callRef("call_f");
    await store.calls.finishCall({ ref: ended, guard: { version: 1 }, part: failed(ended) });
    const expected = await Promise.all(["call_b", "call_a"].map((id) => recordOf(store, callRef(id))));
    expect(await store.calls.findDelegated("ses_root", "d1")).toEqual(expected);
    expect(await store.calls.findDelegated("ses_root", "d3")).toEqual([]);
    expect(await store.calls.findDelegated("ses_none", "d1")).toEqual([]);
    const again = await store.reopen();
    expect((await again.calls.findDelegated("ses_root", "d1")).map((record) => record.ref.callId)).toEqual([
      "call_b",
      "call_a",
    ]);
  });

  test("finds a delegated call by its assignment, also after its end and after it was opened again", async () => {
    const store = await open();
    const { version } = await openStarted(store);
    expect(await store.calls.findAssigned("hash_1")).toMatchObject({ ref, part: { state: { case: "running" } } });
    expect(await store.calls.findAssigned("hash_2")).toBeUndefined();
    await store.calls.finishCall({ ref, guard: { version }, part: completed(ref) });
    const again = await store.reopen();
    expect(await again.calls.findAssigned("hash_1")).toMatchObject({ ref, part: { state: { case: "completed" } } });
    again.advance(8 * day);
    await again.calls.sweep();
    expect(await again.calls.findAssigned("hash_1")).toBeUndefined();
  });

  test("keeps a waiting and a started delegated call when the store is opened again", async () => {
    const store = await open();
    await openWaiting(store);
    const second = callRef("call_2");
    await openStarted(store, second);
    const again = await store.reopen();
    expect(await recordOf(again, ref)).toMatchObject({ owner: "", part: { permissionIds: ["per_1"] } });
    expect(await recordOf(again, second)).toMatchObject({ owner: "", attempts: 1, assignment: "hash_1" });
    await again.permissions.settle(await answer(again, ref, "per_1"));
    expect(await again.calls.claimCall(ref, other, leaseMs)).toMatchObject({ owner: other });
    expect(await again.calls.claimCall(second, other, leaseMs)).toBeUndefined();
  });

  test("limits the open delegated calls of a session and its other calls, each without the others", async () => {
    const store = await open();
    await addSession(store);
    for (const id of ["d1", "d2", "d3"]) await openDelegated(store, callRef(id), 3);
    expect(await refusal(openDelegated(store, callRef("d4"), 3))).toMatchObject({ limit: "delegated_calls" });
    await openCall(store, callRef("c1"), { maxOpenCalls: 2 });
    await openCall(store, callRef("c2"), { maxOpenCalls: 2 });
    expect(await refusal(openCall(store, callRef("c3"), { maxOpenCalls: 2 }))).toMatchObject({
      limit: "running_calls",
    });
    await store.calls.finishCall({ ref: callRef("d1"), guard: { version: 1 }, part: failed(callRef("d1")) });
    expect(await refusal(openCall(store, callRef("c3"), { maxOpenCalls: 2 }))).toMatchObject({
      limit: "running_calls",
    });
    await store.calls.finishCall({ ref: callRef("c1"), guard: { version: 1 }, part: failed(callRef("c1")) });
    expect(await openCall(store, callRef("c3"), { maxOpenCalls: 2 })).toMatchObject({ version: 1 });
    expect(await openDelegated(store, callRef("d4"), 3)).toMatchObject({ version: 1 });
  });

  test("shows the requested cancellation of a running delegated call in its part", async () => {
    const store = await open();
    await openStarted(store);
    const wanted = { ...running(ref), cancelRequested: true };
    await store.calls.requestCancel(ref, "stop", wanted);
    await store.calls.requestCancel(ref, "again", { ...wanted, agent: "plan" });
    expect(await recordOf(store, ref)).toMatchObject({
      cancel: "stop",
      part: { cancelRequested: true, agent: "build", state: { case: "running" } },
    });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running", "call_1 running"]);
  });

  test("adds a late report to the audit once", async () => {
    const store = await open();
    const { version } = await openStarted(store);
    expect(await store.calls.noteReport(ref, [report])).toBe(false);
    await store.calls.finishCall({ ref, guard: { version }, part: failed(ref) });
    const noted = await Promise.all([1, 2, 3].map(() => store.calls.noteReport(ref, [report])));
    expect(noted.filter(Boolean)).toEqual([true]);
    const entries = await store.permissions.listDecisions({ root: "ses_root", afterSeq: 0, limit: 10 });
    expect(entries.map(({ record }) => record?.kind)).toEqual([DecisionKind.REPORTED]);
  });
}

async function openDelegated(store: OpenedStore, call = ref, maxOpenCalls = 1_000): Promise<CallRecord> {
  return await openCall(store, call, { spec: callSpec({ delegated: delegation }), maxOpenCalls, part: pending(call) });
}

/** Opens a delegated call that waits for an ask. */
async function openWaiting(store: OpenedStore): Promise<void> {
  await addSession(store);
  const { version, ...record } = await openDelegated(store);
  const step = { fence: fenceOf({ version, ...record }), version, asks: [ask(ref, "per_1", store)], withdraw: [] };
  await store.calls.openAsks({ ...step, message: "", maxOpenAsks: 10, dueMs: askMs });
}

/** Opens and starts a delegated call; the session may exist. */
async function openStarted(store: OpenedStore, call = ref): Promise<CallRecord> {
  await addSession(store);
  const record = await openDelegated(store, call);
  const delegated = { assignment: "hash_1", reportMs };
  await store.calls.startCall({ fence: fenceOf(record), version: record.version, part: running(call), delegated });
  return await recordOf(store, call);
}
