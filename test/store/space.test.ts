import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, onTestFinished, test } from "vitest";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { addSession, callRef, completed, day, type OpenedStore, startCall } from "./fixture.ts";

async function newDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-space-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

const mebibyte = 1_048_576;

/** Opens a store, and fills it with 12 MB of results if it is empty. */
async function openFilled(directory: string, clock: () => number): Promise<OpenedStore> {
  const opened = await openSqliteStore({ directory, clock });
  const unused = { advance() {}, reopen: () => Promise.reject(new Error("not used")) };
  const store = { ...opened, ...unused, close: opened.calls.close };
  onTestFinished(() => store.close().catch(() => {}));
  if ((await store.calls.listSessions({ limit: 1 })).length > 0) return store;
  await addSession(store);
  for (let index = 0; index < 20; index++) {
    const ref = callRef(`call_${index}`);
    const fence = await startCall(store, ref);
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "x".repeat(300_000)) });
  }
  return store;
}

test("a sweep gives the space of removed records back to the disk", async () => {
  let now = Date.UTC(2026, 10, 23);
  const store = await openFilled(await newDirectory(), () => now);
  const before = await store.calls.sizes();
  expect(before.database).toBeGreaterThan(11 * mebibyte);
  now += 100 * day;
  await store.calls.sweep();
  const { database, log } = await store.calls.sizes();
  expect(database).toBeLessThan(6 * mebibyte);
  expect(log).toBeLessThan(mebibyte);
});

test("a database that cannot give pages back is rewritten at the next start, with all records", async () => {
  const directory = await newDirectory();
  const now = Date.UTC(2026, 10, 23);
  const first = await openFilled(directory, () => now);
  await first.close();
  const db = new DatabaseSync(join(directory, "toolgate.sqlite"));
  db.exec("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM; PRAGMA journal_mode = WAL");
  db.close();
  const second = await openFilled(directory, () => now);
  expect(await second.calls.listCalls({ sessionId: "ses_root", limit: 100 })).toHaveLength(20);
  await second.close();
  const again = new DatabaseSync(join(directory, "toolgate.sqlite"));
  expect(again.prepare("PRAGMA auto_vacuum").get()).toEqual({ auto_vacuum: 2 });
  again.close();
});
