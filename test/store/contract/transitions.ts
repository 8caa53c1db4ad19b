import { expect, test } from "vitest";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  addSession,
  answer,
  callRef,
  callSpec,
  childPart,
  completed,
  failed,
  fenceOf,
  kinds,
  leaseMs,
  logOf,
  type OpenStore,
  openAskedCall,
  openAsks,
  openCall,
  openChild,
  owner,
  pending,
  recordOf,
  refusal,
  running,
  startCall,
} from "../fixture.ts";

const ref = callRef();

/** Contract of `CallTransitions`. */
export function transitionsContract(open: OpenStore): void {
  test("accepts a call as pending, under a lease, and emits it", async () => {
    const store = await open();
    await addSession(store);
    const record = await openCall(store, ref);
    expect(record).toMatchObject({ ref, version: 1, epoch: 1, owner, attempts: 0, openedSeq: 1, spec: callSpec() });
    expect(record.part).toMatchObject({ revision: 1n, permissionIds: [], state: { case: "pending" } });
    expect(await store.calls.getCall("ses_root", "call_1")).toEqual(record);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
  });

  test("accepts and starts a call in one step", async () => {
    const store = await open();
    await addSession(store);
    const call = { ref, part: pending(ref), start: running(ref), spec: callSpec(), owner, leaseMs, maxOpenCalls: 10 };
    const { record } = await store.calls.openCall(call);
    expect(record).toMatchObject({ version: 2, epoch: 1, owner, attempts: 1, openedSeq: 1 });
    expect(record.part).toMatchObject({ revision: 2n, state: { case: "running" } });
    expect(await store.calls.getCall("ses_root", "call_1")).toEqual(record);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running"]);
    const again = { fence: fenceOf(record), version: 2, part: running(ref) };
    expect(await store.calls.startCall(again)).toBe("fenced");
    const ended = await store.calls.finishCall({ ref, guard: { fence: fenceOf(record) }, part: completed(ref) });
    expect(ended).toEqual((await recordOf(store, ref)).part);
    expect(ended).toMatchObject({ revision: 3n, state: { case: "completed" } });
  });

  test("accepts, starts and ends a call in one step, with what it has read", async () => {
    const store = await open();
    await addSession(store);
    const call = { ref, part: pending(ref), start: running(ref), spec: callSpec(), owner, leaseMs, maxOpenCalls: 1 };
    const reads = new Map([["/w/a", "1"]]);
    const { record, created } = await store.calls.openCall({ ...call, end: completed(ref), reads });
    expect(created).toBe(true);
    expect(record).toMatchObject({
      version: 3,
      epoch: 1,
      owner: "",
      attempts: 1,
      openedSeq: 1,
      part: { revision: 3n },
    });
    expect(await recordOf(store, ref)).toEqual(record);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running", "call_1 completed"]);
    expect(await store.calls.getRead("ses_root", "/w/a")).toBe("1");
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([]);
    expect(await store.calls.listCalls({ sessionId: "ses_root", open: true, limit: 10 })).toEqual([]);
    store.advance(2 * leaseMs);
    expect(await store.calls.orphans()).toEqual([]);
    // It no longer counts as open.
    const next = { ...call, ref: callRef("call_2"), part: pending(callRef("call_2")) };
    expect((await store.calls.openCall(next)).created).toBe(true);
    const again = await store.calls.openCall({ ...call, end: completed(ref, "other") });
    expect(again).toEqual({ record, created: false });
    const reopened = await store.reopen();
    expect((await reopened.calls.getCall("ses_root", "call_1"))?.part.state.case).toBe("completed");
    expect(kinds(await logOf(reopened)).slice(0, 3)).toEqual(["call_1 pending", "call_1 running", "call_1 completed"]);
  });

  test("neither starts nor ends a call with too many repeats, and records nothing that it has read", async () => {
    const store = await open();
    await addSession(store);
    const step = (id: string) => {
      const ref = callRef(id);
      const reads = new Map([[`/w/${id}`, "1"]]);
      const call = {
        ref,
        part: pending(ref),
        start: running(ref),
        end: completed(ref),
        reads,
        spec: callSpec(),
        owner,
      };
      return store.calls.openCall({ ...call, leaseMs, maxOpenCalls: 10, maxRepeats: 1 });
    };
    for (const id of ["c1", "c2"]) expect((await step(id)).record.part.state.case).toBe("completed");
    const { record } = await step("c3");
    expect(record).toMatchObject({ repeats: 2, attempts: 0, version: 1, owner, part: { state: { case: "pending" } } });
    expect(await recordOf(store, callRef("c3"))).toEqual(record);
    expect(await store.calls.getRead("ses_root", "/w/c2")).toBe("1");
    expect(await store.calls.getRead("ses_root", "/w/c3")).toBeUndefined();
    expect(await store.calls.startCall({ fence: fenceOf(record), version: 1, part: running(record.ref) })).toBe(
      "started",
    );
  });

  test("ends the open children of a call in the same step, and withdraws their asks with the text of their end", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    const [first, second, third, ended] = ["1", "2", "2.1", "3"].map((id) => callRef(`call_1.${id}`));
    if (!first || !second || !third || !ended) throw new Error("a reference is missing");
    for (const each of [first, second, ended]) await openChild(store, each, ref.callId);
    await openAsks(store, first, ["per_1", "per_2"]);
    const running2 = await recordOf(store, second);
    const start = { fence: fenceOf(running2), version: running2.version, part: childPart(running(second), ref.callId) };
    expect(await store.calls.startCall(start)).toBe("started");
    await openChild(store, third, second.callId);
    const background = callRef("call_1.4");
    await openCall(store, background, { part: { ...pending(background), background: true, parentCallId: ref.callId } });
    const done = { ref: ended, guard: { version: 1 }, part: childPart(completed(ended), ref.callId) };
    expect(await store.calls.finishCall(done)).toMatchObject({ state: { case: "completed" } });

    const before = await logOf(store);
    const end = { ref, guard: { fence }, part: completed(ref) };
    expect(await store.calls.finishCall(end)).toBe("open children");
    const children = [
      { ref: first, version: 2, part: childPart(failed(first), ref.callId) },
      { ref: second, version: 2, part: childPart(failed(second), ref.callId) },
      { ref: third, version: 1, part: childPart(failed(third), second.callId) },
    ];
    expect(await store.calls.finishCall({ ...end, children })).toMatchObject({ state: { case: "completed" } });
    const events = (await logOf(store)).slice(before.length);
    expect(kinds(events)).toEqual([
      ...["call_1.2.1 error", "call_1.2 error", "per_1 WITHDRAWN", "per_2 WITHDRAWN", "call_1.1 error"],
      "call_1 completed",
    ]);
    expect(events[2]?.event.value).toMatchObject({ callId: "call_1.1", message: "no" });
    const left = await store.calls.listCalls({ sessionId: ref.sessionId, open: true, limit: 10 });
    expect(left.map(({ ref: { callId } }) => callId)).toEqual(["call_1.4"]);
    // None starts afterwards, and no other one is accepted.
    const late = { fence: fenceOf(await recordOf(store, first)), version: 3, part: running(first) };
    expect(await store.calls.startCall({ ...late, fence: { ...late.fence, owner } })).toBe("fenced");
    store.advance(2 * leaseMs);
    expect(await store.calls.claimCall(first, "replica_2", leaseMs)).toBeUndefined();
    expect((await refusal(openChild(store, callRef("call_1.5"), ref.callId))).reason).toBe(ErrorReason.NO_SUCH_CALL);
    expect((await openChild(store, first, ref.callId)).part.state.case).toBe("error");
  });

  test("finds the children of a call again after a restart, and ends a call whose children have ended by an answer", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    const child = callRef("call_1.1");
    await openChild(store, child, ref.callId);
    await openAsks(store, child, ["per_1"]);
    const reopened = await store.reopen();
    const { version } = await recordOf(reopened, ref);
    const end = { ref, guard: { version }, part: failed(ref) };
    expect(await reopened.calls.finishCall(end)).toBe("open children");
    const rejected = { ref: child, version: 2, part: childPart(failed(child), ref.callId) };
    const settlement = await answer(reopened, child, "per_1", { calls: [rejected] });
    expect(await reopened.permissions.settle(settlement)).toEqual({ result: "won" });
    expect(await reopened.calls.finishCall(end)).toMatchObject({ state: { case: "error" } });
  });

  test("refuses a call that ended before it was accepted in a closed session", async () => {
    const store = await open();
    await addSession(store);
    await store.calls.closeSession("ses_root");
    const call = { ref, part: pending(ref), start: running(ref), end: completed(ref), spec: callSpec(), owner };
    const refused = await refusal(store.calls.openCall({ ...call, leaseMs, maxOpenCalls: 10 }));
    expect(refused.reason).toBe(ErrorReason.SESSION_CLOSED);
    expect(await logOf(store)).toEqual([]);
  });

  test("gives concurrent calls of one request different numbers of repeats", async () => {
    const store = await open();
    await addSession(store);
    const ids = Array.from({ length: 20 }, (_, i) => `c${i}`);
    const opened = await Promise.all(ids.map((id) => openCall(store, callRef(id))));
    expect(opened.map(({ repeats }) => repeats).toSorted((a, b) => a - b)).toEqual(ids.map((_, i) => i));
  });

  test("accepts a call with too many repeats without starting it", async () => {
    const store = await open();
    await addSession(store);
    const acceptCall = async (id: string) => {
      const ref = callRef(id);
      const call = { ref, part: pending(ref), start: running(ref), spec: callSpec(), owner, leaseMs, maxOpenCalls: 10 };
      return (await store.calls.openCall({ ...call, maxRepeats: 1 })).record;
    };
    expect([(await acceptCall("c1")).part.state.case, (await acceptCall("c2")).part.state.case]).toEqual([
      "running",
      "running",
    ]);
    const third = await acceptCall("c3");
    expect(third).toMatchObject({ repeats: 2, attempts: 0, version: 1, part: { state: { case: "pending" } } });
    expect(await recordOf(store, callRef("c3"))).toEqual(third);
    expect(kinds(await logOf(store)).at(-1)).toBe("c3 pending");
    const fence = fenceOf(third);
    expect(await store.calls.startCall({ fence, version: 1, part: running(third.ref) })).toBe("started");
  });

  test("returns the first call for a repeated id, and changes nothing", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    const again = { ref, part: pending(ref, { command: "other" }), spec: callSpec({ requestDigest: "other" }) };
    const attached = await store.calls.openCall({ ...again, owner: "replica_2", leaseMs, maxOpenCalls: 1 });
    expect(attached.created).toBe(false);
    expect(attached.record).toMatchObject({ owner, spec: { requestDigest: "digest" } });
    expect(await logOf(store)).toHaveLength(1);
  });

  test("accepts exactly one of concurrent calls with one id", async () => {
    const store = await open();
    await addSession(store);
    const call = { ref, part: pending(ref), leaseMs, maxOpenCalls: 1_000 };
    const opened = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        store.calls.openCall({ ...call, owner: `replica_${index}`, spec: callSpec({ principal: `p${index}` }) }),
      ),
    );
    expect(opened.filter(({ created }) => created)).toHaveLength(1);
    expect(new Set(opened.map(({ record }) => `${record.owner} ${record.spec.principal}`)).size).toBe(1);
    expect(await logOf(store)).toHaveLength(1);
  });

  test("accepts the same call id in another session as another call", async () => {
    const store = await open();
    await addSession(store, "ses_one");
    await addSession(store, "ses_two");
    await openCall(store, callRef("call_1", "ses_one", "ses_one"));
    await openCall(store, callRef("call_1", "ses_two", "ses_two"));
    expect(await logOf(store, "ses_two")).toHaveLength(1);
  });

  test("accepts calls again below the quota, once another has ended", async () => {
    const store = await open();
    await addSession(store);
    const first = await openCall(store, callRef("call_1"), { maxOpenCalls: 2 });
    await openCall(store, callRef("call_2"), { maxOpenCalls: 2 });
    await store.calls.finishCall({ ref: first.ref, guard: { fence: fenceOf(first) }, part: failed(first.ref) });
    expect((await openCall(store, callRef("call_3"), { maxOpenCalls: 2 })).version).toBe(1);
    expect(await logOf(store)).toHaveLength(4);
  });

  test("records once that the before-hooks have run, with their input", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    const part = pending(ref, { command: "make -n" });
    const outcomes = await Promise.all([1, 2].map(() => store.calls.prepareCall({ fence, part })));
    expect(outcomes.toSorted()).toEqual([false, true]);
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({ prepared: true, version: 2, part: { revision: 2n } });
    expect(record.part.state).toMatchObject({ case: "pending", value: { input: { command: "make -n" } } });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 pending"]);
    expect(await store.calls.startCall({ fence, version: 1, part: running(ref) })).toBe("retry");
  });

  test("emits nothing for before-hooks that changed nothing, and keeps the call prepared for a new owner", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.prepareCall({ fence })).toBe(true);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs);
    expect(claimed).toMatchObject({ prepared: true, owner: "replica_2" });
    expect((await (await store.reopen()).calls.getCall("ses_root", "call_1"))?.prepared).toBe(true);
  });

  test("stores hook state and memo for a new owner, each apart from the other, until the call ends", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.noteCall({ fence, hooked: '{"a":1}' })).toBe(true);
    expect(await store.calls.noteCall({ fence, memo: '{"m":1}' })).toBe(true);
    expect(await store.calls.noteCall({ fence, hooked: '{"b":2}' })).toBe(true);
    expect(await recordOf(store, ref)).toMatchObject({ hooked: '{"b":2}', memo: '{"m":1}', version: 1 });
    expect(await store.calls.noteCall({ fence, memo: '{"m":2}' })).toBe(true);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs);
    expect(claimed).toMatchObject({ hooked: '{"b":2}', memo: '{"m":2}' });
    if (claimed) await store.calls.finishCall({ ref, guard: { fence: fenceOf(claimed) }, part: failed(ref) });
    const { hooked, memo } = await recordOf(store, ref);
    expect([hooked, memo]).toEqual([undefined, undefined]);
  });

  test("starts a call", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.startCall({ fence, version: 1, part: running(ref) })).toBe("started");
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({ version: 2, attempts: 1, part: { revision: 2n, state: { case: "running" } } });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running"]);
  });

  test("lets exactly one of concurrent starts enter the body", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    const starts = Array.from({ length: 20 }, () => store.calls.startCall({ fence, version: 1, part: running(ref) }));
    expect((await Promise.all(starts)).filter((result) => result === "started")).toHaveLength(1);
    expect((await recordOf(store, ref)).attempts).toBe(1);
  });

  test("ends a call for good", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "first") })).toBeDefined();
    expect(await recordOf(store, ref)).toMatchObject({
      version: 3,
      owner: "",
      part: { revision: 3n, state: { value: { output: "first" } } },
    });
    expect(kinds(await logOf(store)).at(-1)).toBe("call_1 completed");
  });

  test("lets exactly one of concurrent ends win", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    const ends = Array.from({ length: 20 }, (_, index) =>
      store.calls.finishCall({
        ref,
        guard: index % 2 === 0 ? { fence } : { version: 2 },
        part: completed(ref, `number ${index}`),
      }),
    );
    const won = (await Promise.all(ends)).flatMap((result, index) => (result ? [`number ${index}`] : []));
    expect(won).toHaveLength(1);
    expect((await recordOf(store, ref)).part.state).toMatchObject({ case: "completed", value: { output: won[0] } });
  });

  test("withdraws the open asks of a call before it emits the end", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    expect((await recordOf(store, ref)).part.permissionIds).toEqual(["per_1", "per_2"]);
    await store.calls.finishCall({ ref, guard: { version: 2 }, part: failed(ref) });
    expect((await recordOf(store, ref)).part).toMatchObject({ permissionIds: [], revision: 6n });
    const emitted = kinds(await logOf(store)).slice(3);
    expect(emitted).toEqual(["per_1 WITHDRAWN", "per_2 WITHDRAWN", "call_1 error"]);
    expect(await store.permissions.openAsks({ limit: 10 })).toEqual([]);
  });

  test("emits a large input once and stores it in the record", async () => {
    const store = await open();
    await addSession(store);
    // As JSON these are 16 KiB to the byte, and one more.
    const small = { text: "x".repeat(16 * 1024 - '{"text":""}'.length) };
    const large = { text: `${small.text}x` };
    for (const [callId, input] of Object.entries({ call_small: small, call_large: large })) {
      const call = callRef(callId);
      const fence = fenceOf(await openCall(store, call, { part: pending(call, input) }));
      await store.calls.startCall({ fence, version: 1, part: running(call, input) });
      await store.calls.finishCall({ ref: call, guard: { fence }, part: completed(call, "done", input) });
      expect((await recordOf(store, call)).part).toMatchObject({ inputElided: false, state: { value: { input } } });
    }
    const emitted = (await logOf(store)).map(({ event }) => {
      const part = event.case === "part" ? event.value : undefined;
      return { elided: part?.inputElided, input: part?.state.value?.input };
    });
    const whole = (input: object) => ({ elided: false, input });
    const elided = { elided: true, input: {} };
    expect(emitted).toEqual([whole(small), whole(small), whole(small), whole(large), elided, elided]);
  });

  test("accepts a call after a refused attempt, under the first sequence number", async () => {
    const store = await open();
    await addSession(store);
    const part = pending(ref, { text: "x".repeat(1024 * 1024) });
    await refusal(openCall(store, ref, { part }));
    expect((await openCall(store, ref)).openedSeq).toBe(1);
  });

  test("applies concurrent steps next to a refused one", async () => {
    const store = await open();
    await addSession(store);
    const part = pending(callRef("call_large"), { text: "x".repeat(1024 * 1024) });
    const [first, large, last] = await Promise.allSettled([
      openCall(store, callRef("call_1")),
      openCall(store, callRef("call_large"), { part }),
      openCall(store, callRef("call_2")),
    ]);
    expect([first.status, large.status, last.status]).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_2 pending"]);
    expect((await store.calls.getSession("ses_root"))?.lastSeq).toBe(2n);
  });

  test("stores the request to cancel and notifies the owner", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    const notified: string[] = [];
    store.calls.onNews("ses_root", (id) => notified.push(id));
    await store.calls.requestCancel(ref, "not needed");
    expect(await recordOf(store, ref)).toMatchObject({ cancel: "not needed", version: 3 });
    expect(notified).toContain("ses_root");
  });
}
