import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { createWaits } from "../../src/call/log.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { addSession, callRef, failed, type OpenedStore, openCall } from "../store/fixture.ts";

async function open(): Promise<OpenedStore> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-waits-"));
  const store = await openSqliteStore({ directory });
  onTestFinished(async () => {
    await store.calls.close();
    await rm(directory, { recursive: true, force: true });
  });
  const opened = { ...store, advance: () => undefined, reopen: open, close: async () => undefined };
  await addSession(opened);
  return opened;
}

const [one, other] = [callRef("call_1"), callRef("call_2")];
const { signal } = new AbortController();

test("of two calls that wait in a session only the one with news is woken", async () => {
  const store = await open();
  await openCall(store, one);
  await openCall(store, other);
  const waits = createWaits(store.calls);
  const [waiting, bystander] = [await waits.begin(one), await waits.begin(other)];
  const woken: string[] = [];
  const news = bystander.news(signal).then(() => woken.push("bystander"));
  await store.calls.finishCall({ ref: one, guard: { version: 1 }, part: failed(one) });
  await waiting.news(signal);
  expect(woken).toEqual([]);
  await store.calls.finishCall({ ref: other, guard: { version: 1 }, part: failed(other) });
  await news;
  waiting.end();
  bystander.end();
});

test("news between the begin of a wait and its first read are not missed", async () => {
  const store = await open();
  await openCall(store, one);
  const wait = await createWaits(store.calls).begin(one);
  await store.calls.finishCall({ ref: one, guard: { version: 1 }, part: failed(one) });
  await wait.news(signal);
  wait.end();
});

test("a log that cannot be read fails all waits, and a later wait gets another reader", async () => {
  const store = await open();
  await openCall(store, one);
  let broken = true;
  const readLog: typeof store.calls.readLog = async (...page) => {
    if (broken) throw new Error("the disk is gone");
    return await store.calls.readLog(...page);
  };
  const waits = createWaits({ ...store.calls, readLog });
  const waiting = [await waits.begin(one), await waits.begin(one)];
  for (const wait of waiting) await expect(wait.news(signal)).rejects.toThrow("the disk is gone");
  broken = false;
  const again = await waits.begin(one);
  await store.calls.finishCall({ ref: one, guard: { version: 1 }, part: failed(one) });
  await again.news(signal);
  again.end();
  for (const wait of waiting) wait.end();
});
