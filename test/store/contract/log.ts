import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolOutputSchema, ToolProgressSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  addSession,
  addTree,
  answer,
  callRef,
  completed,
  failed,
  fenceOf,
  kinds,
  logOf,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openCall,
  recordOf,
  running,
  startCall,
} from "../fixture.ts";

const ref = callRef();
const progress = (title: string) => create(ToolProgressSchema, { callId: "call_1", title });

/** Opens a session whose log has two events of a call and then this many of progress. */
async function openLog(open: OpenStore, events: number, limits?: { events: number; bytes: number }) {
  const store = await open(limits && { limits });
  await addSession(store);
  const fence = await startCall(store, ref);
  for (let index = 0; index < events; index++) await store.calls.recordEvents(fence, [progress(`step ${index}`)]);
  return { store, fence };
}

const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => BigInt(from + index));
const seqs = async (store: OpenedStore, sessionId: string) => (await logOf(store, sessionId)).map(({ seq }) => seq);

/** Contract of `EventLog`. */
export function logContract(open: OpenStore): void {
  test("appends progress and output of a running call, in order", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    await store.calls.startCall({ fence, version: 1, part: running(ref) });
    const output = create(ToolOutputSchema, { callId: "call_1", offset: 0n, length: 3, output: "toolgate-output:a" });
    expect(await store.calls.recordEvents(fence, [progress("one"), output])).toBe(true);
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) });
    const events = await logOf(store);
    expect(kinds(events)).toEqual(["call_1 pending", "call_1 running", "progress", "output", "call_1 completed"]);
    expect(events[3]).toMatchObject({ seq: 4n, sessionId: "ses_root", event: { value: { offset: 0n, length: 3 } } });
  });

  test("appends the end of a background call after its part, whichever step ends it", async () => {
    const store = await open();
    await addSession(store);
    const [finished, rejected] = [callRef("call_1"), callRef("call_2")];
    const fence = await startCall(store, finished);
    const ends = { ...completed(finished), background: true, childSessionId: "ses_child" };
    const stored = await store.calls.finishCall({ ref: finished, guard: { fence }, part: ends });
    await openAskedCall(store, rejected, ["per_1"]);
    const { version } = await recordOf(store, rejected);
    const part = { ...failed(rejected), background: true };
    await store.permissions.settle(
      await answer(store, rejected, "per_1", { calls: [{ ref: rejected, version, part }] }),
    );
    const events = await logOf(store);
    expect(kinds(events)).toEqual([
      ...["call_1 pending", "call_1 running", "call_1 completed", "backgroundEnded"],
      ...["call_2 pending", "per_1 asked", "per_1 ONCE", "call_2 error", "backgroundEnded"],
    ]);
    expect(events.map(({ seq }) => seq)).toEqual(numbers(1, 9));
    expect(events[3]?.event.value).toMatchObject({ callId: "call_1", childSessionId: "ses_child", reason: 0 });
    expect(events[8]?.event.value).toMatchObject({ callId: "call_2", reason: ToolErrorReason.REJECTED });
    expect(stored).toMatchObject({ revision: 3n });
    expect((await recordOf(store, finished)).part.revision).toBe(3n);
  });

  test("does not change the version of a call by its progress", async () => {
    const store = await open();
    await addSession(store);
    const fence = await startCall(store, ref);
    await store.calls.recordEvents(fence, [progress("one")]);
    expect((await recordOf(store, ref)).version).toBe(2);
  });

  test("assigns sequence numbers without gaps per session, for concurrent writers", async () => {
    const store = await open();
    await addTree(store);
    const sessions = ["ses_root", "ses_child", "ses_grandchild"];
    await Promise.all(
      Array.from({ length: 99 }, (_, index) => {
        const sessionId = sessions[index % 3] ?? "";
        return openAskedCall(store, callRef(`call_${index}`, sessionId), [`per_${index}`]);
      }),
    );
    expect(await seqs(store, "ses_grandchild")).toEqual(numbers(1, 66));
    expect(await seqs(store, "ses_child")).toEqual(numbers(1, 99));
    expect(await seqs(store, "ses_root")).toEqual(numbers(1, 132));
    expect((await store.calls.getSession("ses_root"))?.lastSeq).toBe(132n);
    for (const event of await logOf(store, "ses_child")) expect(event.sessionId).toBe("ses_child");
  });

  test("reads a log from any sequence number, in pages of at least one event", async () => {
    const { store } = await openLog(open, 8);
    const page = await store.calls.readLog("ses_root", 4, 1);
    expect(page).toMatchObject({ events: [{ seq: 5n }], firstSeq: 1, lastSeq: 10 });
    expect((await store.calls.readLog("ses_root", 4, 1_000_000)).events.map(({ seq }) => seq)).toEqual(numbers(5, 10));
    expect(await store.calls.readLog("ses_root", 10, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 10 });
    expect(await store.calls.readLog("ses_root", 99, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 10 });
    expect(await store.calls.readLog("ses_none", 0, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 0 });
  });

  test("reads the same events live and after the store is opened again", async () => {
    const { store } = await openLog(open, 20);
    await openAskedCall(store, callRef("call_2"), ["per_1"]);
    const live = await logOf(store);
    const reopened = await store.reopen();
    expect(await logOf(reopened)).toEqual(live);
    await openCall(reopened, callRef("call_3"));
    expect(kinds(await logOf(reopened)).at(-1)).toBe("call_3 pending");
    expect(await seqs(reopened, "ses_root")).toEqual(numbers(1, 25));
  });

  test("reads a whole log whose end alone is cached", async () => {
    const { store, fence } = await openLog(open, 0);
    const batch = Array.from({ length: 400 }, (_, index) => progress(`step ${index}`));
    for (let times = 0; times < 3; times++) await store.calls.recordEvents(fence, batch);
    expect(await seqs(store, "ses_root")).toEqual(numbers(1, 1_202));
    const tail = await store.calls.readLog("ses_root", 1_190, 1_000_000);
    expect(tail.events.map(({ seq }) => seq)).toEqual(numbers(1_191, 1_202));
  });

  test("trims the beginning of a log with too many events, and returns its first sequence number", async () => {
    const { store } = await openLog(open, 298, { events: 100, bytes: 1_000_000 });
    const { firstSeq, lastSeq } = await store.calls.readLog("ses_root", 299, 1_000);
    expect(lastSeq).toBe(300);
    expect(lastSeq - firstSeq + 1).toBeLessThanOrEqual(100);
    expect(lastSeq - firstSeq + 1).toBeGreaterThan(90);
    const retained = await logOf(store, "ses_root", firstSeq - 1);
    expect(retained.map(({ seq }) => seq)).toEqual(numbers(firstSeq, 300));
    expect(await store.calls.readLog("ses_root", firstSeq - 2, 1_000)).toEqual({ events: [], firstSeq, lastSeq });
    expect(await store.calls.getCall("ses_root", "call_1")).toMatchObject({ part: { state: { case: "running" } } });
  });

  test("trims the beginning of a log with too many bytes, but never its last event", async () => {
    const { store, fence } = await openLog(open, 0, { events: 1_000, bytes: 10_000 });
    for (let index = 0; index < 50; index++) await store.calls.recordEvents(fence, [progress("x".repeat(950))]);
    const { firstSeq, lastSeq } = await store.calls.readLog("ses_root", 51, 1_000);
    expect(lastSeq).toBe(52);
    expect(lastSeq - firstSeq + 1).toBeLessThanOrEqual(10);
    expect(lastSeq - firstSeq + 1).toBeGreaterThan(5);
    await store.calls.recordEvents(fence, [progress("x".repeat(20_000))]);
    const last = await store.calls.readLog("ses_root", 52, 1_000);
    expect(last).toMatchObject({ firstSeq: 53, lastSeq: 53, events: [{ seq: 53n }] });
  });

  test("continues the sequence numbers of a trimmed log when the store is opened again", async () => {
    const { store } = await openLog(open, 298, { events: 100, bytes: 1_000_000 });
    const { firstSeq } = await store.calls.readLog("ses_root", 299, 1_000);
    const reopened = await store.reopen();
    expect(await reopened.calls.readLog("ses_root", 300, 1_000)).toEqual({ events: [], firstSeq, lastSeq: 300 });
    expect((await openCall(reopened, callRef("call_2"))).openedSeq).toBe(301);
  });

  test("notifies subscribers of a session of the first new sequence number, once it can be read", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other");
    const notified: string[] = [];
    const inTime: Promise<boolean>[] = [];
    store.calls.onNews("ses_child", (id, seq) => {
      notified.push(`${id} ${seq}`);
      inTime.push(store.calls.readLog(id, seq - 1, 1).then(({ lastSeq }) => lastSeq >= seq));
    });
    store.calls.onNews("ses_other", (id) => notified.push(`wrong ${id}`));
    await openCall(store, callRef("call_1", "ses_child"));
    await openAskedCall(store, callRef("call_2", "ses_child"), ["per_1"]);
    expect(new Set(notified)).toEqual(new Set(["ses_child 1", "ses_child 2", "ses_child 3"]));
    expect(await Promise.all(inTime)).toEqual(notified.map(() => true));
  });

  test("notifies subscribers of all sessions until they unsubscribe", async () => {
    const store = await open();
    await addTree(store);
    const notified = new Set<string>();
    const unsubscribe = store.calls.onNews(undefined, (id) => notified.add(id));
    await openAskedCall(store, callRef("call_1", "ses_grandchild"), ["per_1"]);
    expect(notified).toEqual(new Set(["ses_grandchild", "ses_child", "ses_root"]));
    notified.clear();
    unsubscribe();
    await openCall(store, callRef("call_2"));
    expect(notified.size).toBe(0);
  });
}
