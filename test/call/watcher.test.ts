import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { createSessions } from "../../src/call/sessions.ts";
import { createWatcher } from "../../src/call/watcher.ts";
import type { Principal } from "../../src/core/principal.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import {
  addSession,
  callRef,
  type OpenedStore,
  openAskedCall,
  openAsks,
  openCall,
  startCall,
} from "../store/fixture.ts";

const person: Principal = {
  ...{ id: "ann", roles: new Set(["approver"] as const), agents: ["*"], workspaces: ["*"], lineage: ["ann"] },
  answersOwn: false,
};

/** Opens a store whose logs keep ten events. */
async function openStore(): Promise<OpenedStore> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-watcher-"));
  const opened = await openSqliteStore({ directory, limits: { events: 10, bytes: 1_000_000 } });
  onTestFinished(async () => {
    await opened.calls.close();
    await rm(directory, { recursive: true, force: true });
  });
  return {
    ...opened,
    advance: () => undefined,
    reopen: () => Promise.reject(new Error("this store stays open")),
    close: async () => undefined,
  };
}

function watcherOf(store: OpenedStore) {
  const sessions = createSessions({ store: store.calls, workspaces: {}, agents: new Set() });
  return createWatcher({ store: store.calls, asks: store.permissions, sessions });
}

test("a watcher gets a request whose event was trimmed before it read that", async () => {
  const store = await openStore();
  await addSession(store);
  const fence = await startCall(store, callRef("busy"));
  const asks = watcherOf(store).watch(person, { sessionId: "" }, AbortSignal.timeout(60_000));
  expect(await asks.next()).toEqual({ done: false, value: { snapshotEnd: true } });
  const next = async () => (await asks.next()).value?.event?.event.value;
  await openAskedCall(store, callRef("call_1"), ["per_1"]);
  expect(await next()).toMatchObject({ id: "per_1" });
  await openAskedCall(store, callRef("call_2"), ["per_2"]);
  const progress = create(ToolProgressSchema, { callId: "busy", title: "on and on" });
  for (let index = 0; index < 20; index++) await store.calls.recordEvents(fence, [progress]);
  expect(await next()).toMatchObject({ id: "per_2" });
  await openAskedCall(store, callRef("call_3"), ["per_3"]);
  expect(await next()).toMatchObject({ id: "per_3" });
  await asks.return(undefined);
});

test("the token of a run sees the requests of its session, and of no other of its principal", async () => {
  const store = await openStore();
  const asks = { ses_root: "per_1", ses_other: "per_2" };
  for (const [id, ask] of Object.entries(asks)) {
    await addSession(store, id, { owner: "bot" });
    const call = callRef("call_1", id, id);
    await openCall(store, call);
    await openAsks(store, call, [ask], { fields: { ancestry: [id] } });
  }
  const bot: Principal = { ...person, id: "bot", roles: new Set(["caller"]), lineage: ["bot"] };
  const seenBy = async (principal: Principal) => {
    const seen: unknown[] = [];
    for await (const { event, snapshotEnd } of watcherOf(store).watch(
      principal,
      { sessionId: "" },
      AbortSignal.timeout(60_000),
    )) {
      if (snapshotEnd) break;
      seen.push(event?.event.value);
    }
    return seen;
  };
  expect(await seenBy(bot)).toMatchObject([{ id: "per_1" }, { id: "per_2" }]);
  expect(await seenBy({ ...bot, session: "ses_other" })).toMatchObject([{ id: "per_2" }]);
});
