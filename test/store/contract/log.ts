import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolProgressSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import {
  addSession,
  addTree,
  callRef,
  kinds,
  logOf,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openCall,
  startCall,
} from "../fixture.ts";

const ref = callRef();
const progress = (title: string) => create(ToolProgressSchema, { callId: "call_1", title });

/** A session whose log has a call of two events and then as many of progress as asked for. */
async function openLog(open: OpenStore, events: number, limits?: { events: number; bytes: number }) {
  const store = await open(limits && { limits });
  await addSession(store);
  const fence = await startCall(store, ref);
  for (let index = 0; index < events; index++) await store.calls.recordEvents(fence, [progress(`step ${index}`)]);
  return { store, fence };
}

const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => BigInt(from + index));
const seqs = async (store: OpenedStore, sessionId: string) => (await logOf(store, sessionId)).map(({ seq }) => seq);

export function logContract(open: OpenStore): void {
  test("numbers count without gap in each session, however many write at the same time", async () => {
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

  test("a log is read from any number, page by page, at least one event at a time", async () => {
    const { store } = await openLog(open, 8);
    const page = await store.calls.readLog("ses_root", 4, 1);
    expect(page).toMatchObject({ events: [{ seq: 5n }], firstSeq: 1, lastSeq: 10 });
    expect((await store.calls.readLog("ses_root", 4, 1_000_000)).events.map(({ seq }) => seq)).toEqual(numbers(5, 10));
    expect(await store.calls.readLog("ses_root", 10, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 10 });
    expect(await store.calls.readLog("ses_root", 99, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 10 });
    expect(await store.calls.readLog("ses_none", 0, 1_000)).toEqual({ events: [], firstSeq: 1, lastSeq: 0 });
  });

  test("what is read later is what was read live", async () => {
    const { store } = await openLog(open, 20);
    await openAskedCall(store, callRef("call_2"), ["per_1"]);
    const live = await logOf(store);
    const reopened = await store.reopen();
    expect(await logOf(reopened)).toEqual(live);
    await openCall(reopened, callRef("call_3"));
    expect(kinds(await logOf(reopened)).at(-1)).toBe("call_3 pending");
    expect(await seqs(reopened, "ses_root")).toEqual(numbers(1, 25));
  });

  test("a log is read whole where memory holds its end only", async () => {
    const { store, fence } = await openLog(open, 0);
    const batch = Array.from({ length: 400 }, (_, index) => progress(`step ${index}`));
    for (let times = 0; times < 3; times++) await store.calls.recordEvents(fence, batch);
    expect(await seqs(store, "ses_root")).toEqual(numbers(1, 1_202));
    const tail = await store.calls.readLog("ses_root", 1_190, 1_000_000);
    expect(tail.events.map(({ seq }) => seq)).toEqual(numbers(1_191, 1_202));
  });

  test("a log that holds too many events loses its beginning, and says from where it goes on", async () => {
    const { store } = await openLog(open, 298, { events: 100, bytes: 1_000_000 });
    const { firstSeq, lastSeq } = await store.calls.readLog("ses_root", 299, 1_000);
    expect(lastSeq).toBe(300);
    expect(lastSeq - firstSeq + 1).toBeLessThanOrEqual(100);
    expect(lastSeq - firstSeq + 1).toBeGreaterThan(90);
    const kept = await logOf(store, "ses_root", firstSeq - 1);
    expect(kept.map(({ seq }) => seq)).toEqual(numbers(firstSeq, 300));
    expect(await store.calls.readLog("ses_root", firstSeq - 2, 1_000)).toEqual({ events: [], firstSeq, lastSeq });
    expect(await store.calls.getCall("ses_root", "call_1")).toMatchObject({ part: { state: { case: "running" } } });
  });

  test("a log that holds too many bytes loses its beginning, but never its last event", async () => {
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

  test("a trimmed log stays trimmed and goes on counting when it is opened again", async () => {
    const { store } = await openLog(open, 298, { events: 100, bytes: 1_000_000 });
    const { firstSeq } = await store.calls.readLog("ses_root", 299, 1_000);
    const reopened = await store.reopen();
    expect(await reopened.calls.readLog("ses_root", 300, 1_000)).toEqual({ events: [], firstSeq, lastSeq: 300 });
    expect((await openCall(reopened, callRef("call_2"))).openedSeq).toBe(301);
  });

  test("news ring with the first new number, when it can be read, for those who listen", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other");
    const heard: string[] = [];
    const inTime: Promise<boolean>[] = [];
    store.calls.onNews("ses_child", (id, seq) => {
      heard.push(`${id} ${seq}`);
      inTime.push(store.calls.readLog(id, seq - 1, 1).then(({ lastSeq }) => lastSeq >= seq));
    });
    store.calls.onNews("ses_other", (id) => heard.push(`wrong ${id}`));
    await openCall(store, callRef("call_1", "ses_child"));
    await openAskedCall(store, callRef("call_2", "ses_child"), ["per_1"]);
    expect(new Set(heard)).toEqual(new Set(["ses_child 1", "ses_child 2", "ses_child 3"]));
    expect(await Promise.all(inTime)).toEqual(heard.map(() => true));
  });

  test("who listens to all hears of every session with news, until they leave", async () => {
    const store = await open();
    await addTree(store);
    const heard = new Set<string>();
    const leave = store.calls.onNews(undefined, (id) => heard.add(id));
    await openAskedCall(store, callRef("call_1", "ses_grandchild"), ["per_1"]);
    expect(heard).toEqual(new Set(["ses_grandchild", "ses_child", "ses_root"]));
    heard.clear();
    leave();
    await openCall(store, callRef("call_2"));
    expect(heard.size).toBe(0);
  });
}
