import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test, vi } from "vitest";
import { SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { createFilling, type FollowedEvent, followLog } from "../../src/call/log.ts";
import type { OutputStore } from "../../src/call/ports.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";

const never = new AbortController().signal;

test("a quiet log yields a heartbeat at once and then every 15 s, with the number to resume after", async () => {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-log-"));
  const store = await openSqliteStore({ directory });
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(async () => {
    vi.useRealTimers();
    await store.calls.close();
    await rm(directory, { recursive: true, force: true });
  });
  await store.calls.createSession(create(SessionSchema, { id: "ses_1", rootSessionId: "ses_1", created: 1 }));
  const leave = new AbortController();
  const frames = followLog(store.calls, { sessionId: "ses_1", root: "ses_1", afterSeq: 0 }, leave.signal);
  expect(await frames.next()).toEqual({ done: false, value: { lastSeq: 0 } });
  const first = frames.next();
  await vi.waitFor(() => expect(vi.getTimerCount()).toBe(1), { timeout: 60_000 });
  vi.advanceTimersByTime(15_000);
  expect(await first).toEqual({ done: false, value: { lastSeq: 0 } });
  const second = frames.next();
  leave.abort(new Error("the client left"));
  await expect(second).rejects.toThrow("the client left");
});

test("a log that lacks its last event fails its readers instead of being read for ever", async () => {
  const log = { readLog: async () => ({ events: [], firstSeq: 1, lastSeq: 7 }), onNews: () => () => undefined };
  const parts = { ...log, recordEvents: async () => true, storeIdOf: () => "sto_1" };
  const frames = followLog(parts, { sessionId: "ses_1", root: "ses_1", afterSeq: 6 }, never);
  await expect(frames.next()).rejects.toThrow("the log of session ses_1 ends at 7, and has no event after 6");
});

test("output with many watchers is read once, and all get the same event", async () => {
  let reads = 0;
  const outputs: Pick<OutputStore, "read"> = {
    async read() {
      reads += 1;
      return { data: Buffer.from("hello"), total: 5 };
    },
  };
  const filling = createFilling(outputs);
  const value = { callId: "call_1", output: "toolgate-output:out_1", offset: 0n, length: 5 };
  const event = create(SessionEventSchema, { seq: 1n, event: { case: "output", value } });
  const watch = async () => {
    const seen: FollowedEvent[] = [];
    const followed = (async function* () {
      yield { event, lastSeq: 1 };
    })();
    for await (const each of filling.from(followed, "ses_1")) seen.push(each);
    return seen[0]?.event;
  };
  const [one, other] = await Promise.all([watch(), watch()]);
  expect(one?.event.value).toMatchObject({ data: new Uint8Array(Buffer.from("hello")) });
  expect(other).toBe(one);
  expect(reads).toBe(1);
});
