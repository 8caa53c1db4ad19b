import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolOutputSchema, ToolProgressSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import {
  addSession,
  callRef,
  callSpec,
  completed,
  failed,
  fenceOf,
  grant,
  kinds,
  leaseMs,
  logOf,
  type OpenStore,
  openAskedCall,
  openAsks,
  openCall,
  owner,
  pending,
  recordOf,
  refusal,
  running,
  saveGrant,
  startCall,
} from "../fixture.ts";

const ref = callRef();
const progress = (title: string) => create(ToolProgressSchema, { callId: "call_1", title });

export function callsContract(open: OpenStore): void {
  test("an accepted call is pending, under a lease, and told of", async () => {
    const store = await open();
    await addSession(store);
    const record = await openCall(store, ref);
    expect(record).toMatchObject({ ref, version: 1, epoch: 1, owner, attempts: 0, openedSeq: 1, spec: callSpec() });
    expect(record.part).toMatchObject({ revision: 1n, permissionIds: [], state: { case: "pending" } });
    expect(await store.calls.getCall("ses_root", "call_1")).toEqual(record);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
  });

  test("a call that may start at once is accepted and started in one step", async () => {
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

  test("a call knows how many before it in a row were the same request", async () => {
    const store = await open();
    await addSession(store);
    const opened = async (id: string, requestDigest: string) =>
      (await openCall(store, callRef(id), { spec: callSpec({ requestDigest }) })).repeats;
    const { repeatsOf } = store.calls;
    expect([await repeatsOf("ses_root", "a"), await repeatsOf("ses_none", "a")]).toEqual([0, 0]);
    expect([await opened("c1", "a"), await opened("c2", "a"), await opened("c3", "a")]).toEqual([0, 1, 2]);
    expect([await repeatsOf("ses_root", "a"), await repeatsOf("ses_root", "b")]).toEqual([3, 0]);
    expect([await opened("c2", "a"), await opened("c4", "b"), await opened("c5", "a")]).toEqual([1, 0, 0]);
    expect([await repeatsOf("ses_root", "a"), (await recordOf(store, callRef("c3"))).repeats]).toEqual([1, 2]);
    await addSession(store, "ses_other");
    const other = callRef("c6", "ses_other", "ses_other");
    expect((await openCall(store, other, { spec: callSpec({ requestDigest: "a" }) })).repeats).toBe(0);
  });

  test("of calls that open at the same time no two have the same number of repeats", async () => {
    const store = await open();
    await addSession(store);
    const ids = Array.from({ length: 20 }, (_, i) => `c${i}`);
    const opened = await Promise.all(ids.map((id) => openCall(store, callRef(id))));
    expect(opened.map(({ repeats }) => repeats).toSorted((a, b) => a - b)).toEqual(ids.map((_, i) => i));
  });

  test("a call that repeats others too often is accepted and not started", async () => {
    const store = await open();
    await addSession(store);
    const opened = async (id: string) => {
      const ref = callRef(id);
      const call = { ref, part: pending(ref), start: running(ref), spec: callSpec(), owner, leaseMs, maxOpenCalls: 10 };
      return (await store.calls.openCall({ ...call, maxRepeats: 1 })).record;
    };
    expect([(await opened("c1")).part.state.case, (await opened("c2")).part.state.case]).toEqual([
      "running",
      "running",
    ]);
    const third = await opened("c3");
    expect(third).toMatchObject({ repeats: 2, attempts: 0, version: 1, part: { state: { case: "pending" } } });
    expect(await recordOf(store, callRef("c3"))).toEqual(third);
    expect(kinds(await logOf(store)).at(-1)).toBe("c3 pending");
    const fence = fenceOf(third);
    expect(await store.calls.startCall({ fence, version: 1, part: running(third.ref) })).toBe("started");
  });

  test("the same call again is the first one, and nothing happens", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    const again = { ref, part: pending(ref, { command: "other" }), spec: callSpec({ requestDigest: "other" }) };
    const attached = await store.calls.openCall({ ...again, owner: "replica_2", leaseMs, maxOpenCalls: 1 });
    expect(attached.created).toBe(false);
    expect(attached.record).toMatchObject({ owner, spec: { requestDigest: "digest" } });
    expect(await logOf(store)).toHaveLength(1);
  });

  test("of calls that open at the same time under one id, exactly one is made", async () => {
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

  test("the same call id in another session is another call", async () => {
    const store = await open();
    await addSession(store, "ses_one");
    await addSession(store, "ses_two");
    await openCall(store, callRef("call_1", "ses_one", "ses_one"));
    await openCall(store, callRef("call_1", "ses_two", "ses_two"));
    expect(await logOf(store, "ses_two")).toHaveLength(1);
  });

  test("a session has so many open calls and no more; one that ends makes room", async () => {
    const store = await open();
    await addSession(store);
    const first = await openCall(store, callRef("call_1"), { maxOpenCalls: 2 });
    await openCall(store, callRef("call_2"), { maxOpenCalls: 2 });
    const third = () => openCall(store, callRef("call_3"), { maxOpenCalls: 2 });
    expect(await refusal(third())).toEqual({ reason: ErrorReason.QUOTA_EXCEEDED, limit: "running_calls" });
    await store.calls.finishCall({ ref: first.ref, guard: { fence: fenceOf(first) }, part: failed(first.ref) });
    expect((await third()).version).toBe(1);
    expect(await logOf(store)).toHaveLength(4);
  });

  test("a call that is not known is not there", async () => {
    const store = await open();
    await addSession(store);
    expect(await store.calls.getCall("ses_root", "call_none")).toBeUndefined();
    expect(await store.calls.getCall("ses_none", "call_1")).toBeUndefined();
  });

  test("the hooks before a call are said to have run once, with what they made of its input", async () => {
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

  test("hooks that changed nothing are told to nobody, and are known to have run by whoever takes the call over", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.prepareCall({ fence })).toBe(true);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs);
    expect(claimed).toMatchObject({ prepared: true, owner: "replica_2" });
    expect(await store.calls.prepareCall({ fence })).toBe(false);
    expect((await (await store.reopen()).calls.getCall("ses_root", "call_1"))?.prepared).toBe(true);
  });

  test("what hooks said of a call is known to whoever takes it over, and forgotten when it ends", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.noteCall({ fence, hooked: '{"a":1}' })).toBe(true);
    expect(await store.calls.noteCall({ fence, hooked: '{"b":2}' })).toBe(true);
    expect(await recordOf(store, ref)).toMatchObject({ hooked: '{"b":2}', version: 1 });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending"]);
    store.advance(leaseMs);
    const claimed = await store.calls.claimCall(ref, "replica_2", leaseMs);
    expect(claimed?.hooked).toBe('{"b":2}');
    expect(await store.calls.noteCall({ fence, hooked: "{}" })).toBe(false);
    if (claimed) await store.calls.finishCall({ ref, guard: { fence: fenceOf(claimed) }, part: failed(ref) });
    expect((await recordOf(store, ref)).hooked).toBeUndefined();
  });

  test("a call that has started, has ended or is another's is not prepared", async () => {
    const store = await open();
    await addSession(store);
    const started = await startCall(store, ref);
    expect(await store.calls.prepareCall({ fence: started })).toBe(false);
    await store.calls.finishCall({ ref, guard: { fence: started }, part: completed(ref) });
    expect(await store.calls.prepareCall({ fence: started })).toBe(false);
    const other = fenceOf(await openCall(store, callRef("call_2")));
    expect(await store.calls.prepareCall({ fence: { ...other, owner: "replica_2" } })).toBe(false);
    expect((await recordOf(store, callRef("call_2"))).prepared).toBeUndefined();
  });

  test("the start mark makes it running, once", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.startCall({ fence, version: 1, part: running(ref) })).toBe("started");
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({ version: 2, attempts: 1, part: { revision: 2n, state: { case: "running" } } });
    expect(await store.calls.startCall({ fence, version: 2, part: running(ref) })).toBe("fenced");
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running"]);
  });

  test("of starts at the same time exactly one enters", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    const starts = Array.from({ length: 20 }, () => store.calls.startCall({ fence, version: 1, part: running(ref) }));
    expect((await Promise.all(starts)).filter((result) => result === "started")).toHaveLength(1);
    expect((await recordOf(store, ref)).attempts).toBe(1);
  });

  test("a start is refused to whom the call does not belong, and repeated where something has changed", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    const part = running(ref);
    expect(await store.calls.startCall({ fence: { ...fence, owner: "other" }, version: 1, part })).toBe("fenced");
    expect(await store.calls.startCall({ fence: { ...fence, epoch: 2 }, version: 1, part })).toBe("fenced");
    await openAsks(store, ref, ["per_1"]);
    expect(await store.calls.startCall({ fence, version: 1, part })).toBe("retry");
    await saveGrant(store, grant("grt_1"));
    expect(await store.calls.startCall({ fence, version: 2, rulesVersion: 0, part })).toBe("retry");
    expect(await store.calls.startCall({ fence, version: 2, rulesVersion: 1, part })).toBe("started");
  });

  test("a running call tells of progress and output, in order; nobody else does", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    expect(await store.calls.recordEvents(fence, [progress("too early")])).toBe(false);
    await store.calls.startCall({ fence, version: 1, part: running(ref) });
    const output = create(ToolOutputSchema, { callId: "call_1", offset: 0n, length: 3, output: "toolgate-output:a" });
    expect(await store.calls.recordEvents(fence, [progress("one"), output])).toBe(true);
    expect(await store.calls.recordEvents({ ...fence, epoch: 2 }, [progress("foreign")])).toBe(false);
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) });
    expect(await store.calls.recordEvents(fence, [progress("too late")])).toBe(false);

    const events = await logOf(store);
    expect(kinds(events)).toEqual(["call_1 pending", "call_1 running", "progress", "output", "call_1 completed"]);
    expect(events[3]).toMatchObject({ seq: 4n, sessionId: "ses_root", event: { value: { offset: 0n, length: 3 } } });
  });

  test("progress does not change the version that others decide on", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    await store.calls.recordEvents(fence, [progress("one")]);
    expect((await recordOf(store, ref)).version).toBe(2);
  });

  test("a call ends once and stays as it ended", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "first") })).toBeDefined();
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({
      version: 3,
      owner: "",
      part: { revision: 3n, state: { value: { output: "first" } } },
    });

    expect(await store.calls.finishCall({ ref, guard: { fence }, part: failed(ref) })).toBeUndefined();
    expect(await store.calls.finishCall({ ref, guard: { version: 3 }, part: failed(ref) })).toBeUndefined();
    expect(await store.calls.startCall({ fence, version: 3, part: running(ref) })).toBe("fenced");
    expect(await store.calls.claimCall(ref, "other", leaseMs)).toBeUndefined();
    expect(await openAsks(store, ref, ["per_1"])).toBe(false);
    await store.calls.requestCancel(ref, "stop");
    expect(await recordOf(store, ref)).toEqual(record);
    expect(await logOf(store)).toHaveLength(3);
  });

  test("of ends at the same time exactly one wins", async () => {
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

  test("somebody else can end a call only as it was when they looked", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    expect(await store.calls.finishCall({ ref, guard: { version: 1 }, part: failed(ref) })).toBeUndefined();
    expect(await store.calls.finishCall({ ref, guard: { version: 2 }, part: failed(ref) })).toBeDefined();
  });

  test("the end of a call withdraws what it still asks, before it is told", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    expect((await recordOf(store, ref)).part.permissionIds).toEqual(["per_1", "per_2"]);
    await store.calls.finishCall({ ref, guard: { version: 2 }, part: failed(ref) });
    expect((await recordOf(store, ref)).part).toMatchObject({ permissionIds: [], revision: 6n });
    const told = kinds(await logOf(store)).slice(3);
    expect(told).toEqual(["per_1 WITHDRAWN", "per_2 WITHDRAWN", "call_1 error"]);
    expect(await store.permissions.openAsks({ limit: 10 })).toEqual([]);
  });

  test("a state that is not terminal ends nothing", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    await expect(store.calls.finishCall({ ref, guard: { version: 2 }, part: running(ref) })).rejects.toThrow("call_1");
    expect((await recordOf(store, ref)).version).toBe(2);
  });

  test("a large input is told once; the record keeps it", async () => {
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
    const told = (await logOf(store)).map(({ event }) => {
      const part = event.case === "part" ? event.value : undefined;
      return { elided: part?.inputElided, input: part?.state.value?.input };
    });
    const whole = (input: object) => ({ elided: false, input });
    const elided = { elided: true, input: {} };
    expect(told).toEqual([whole(small), whole(small), whole(small), whole(large), elided, elided]);
  });

  test("an event over 1 MiB is refused and leaves no trace", async () => {
    const store = await open();
    await addSession(store);
    const part = pending(ref, { text: "x".repeat(1024 * 1024) });
    const tooLarge = { reason: ErrorReason.QUOTA_EXCEEDED, limit: "event_bytes" };
    expect(await refusal(openCall(store, ref, { part }))).toEqual(tooLarge);
    expect(await store.calls.getCall("ses_root", "call_1")).toBeUndefined();
    expect((await openCall(store, ref)).openedSeq).toBe(1);
  });

  test("a step that is refused does no harm to those that run beside it", async () => {
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

  test("a wish to cancel is kept for the owner; the first one counts", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    const rung: string[] = [];
    store.calls.onNews("ses_root", (id) => rung.push(id));
    await store.calls.requestCancel(ref, "not needed");
    await store.calls.requestCancel(ref, "again");
    expect(await recordOf(store, ref)).toMatchObject({ cancel: "not needed", version: 3 });
    expect(rung).toContain("ses_root");
  });

  test("calls are listed as they were accepted, all or the open ones, page by page", async () => {
    const store = await open();
    await addSession(store);
    await addSession(store, "ses_other");
    for (const callId of ["call_b", "call_a", "call_d", "call_c"]) await openCall(store, callRef(callId));
    await openCall(store, callRef("call_x", "ses_other", "ses_other"));
    await store.calls.finishCall({ ref: callRef("call_a"), guard: { version: 1 }, part: failed(callRef("call_a")) });
    const list = async (filter: { open?: boolean; after?: string; limit: number }) =>
      (await store.calls.listCalls({ sessionId: "ses_root", ...filter })).map((record) => record.ref.callId);
    expect(await list({ limit: 10 })).toEqual(["call_b", "call_a", "call_d", "call_c"]);
    expect(await list({ open: true, limit: 10 })).toEqual(["call_b", "call_d", "call_c"]);
    expect(await list({ limit: 2 })).toEqual(["call_b", "call_a"]);
    expect(await list({ after: "call_a", limit: 2 })).toEqual(["call_d", "call_c"]);
    expect(await list({ open: true, after: "call_b", limit: 1 })).toEqual(["call_d"]);
  });
}
