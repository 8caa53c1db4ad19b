import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test, vi } from "vitest";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { follow } from "../../src/call/log.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";

test("a quiet log sends a heartbeat after 15 s, with the number to resume from", async () => {
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
  const frames = follow(store, { sessionId: "ses_1", root: "ses_1", afterSeq: 0 }, leave.signal);
  const first = frames.next();
  await vi.waitFor(() => expect(vi.getTimerCount()).toBe(1), { timeout: 10_000 });
  vi.advanceTimersByTime(15_000);
  expect(await first).toEqual({ done: false, value: { lastSeq: 0 } });
  const second = frames.next();
  leave.abort(new Error("the client left"));
  await expect(second).rejects.toThrow("the client left");
});
