import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, createReadStream, createWriteStream } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { pipeline } from "node:stream/promises";
import { setTimeout } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { packTar } from "modern-tar";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolEffects, ToolErrorReason, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { endOfRestored } from "../../src/call/claims.ts";
import { restoreInto } from "../../src/compose/store.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { backUpSqlite, openSqliteStore, type SqliteStore } from "../../src/store/sqlite/store.ts";
import {
  addSession,
  callRef,
  completed,
  grant,
  logOf,
  type OpenedStore,
  openAskedCall,
  recordOf,
  saveGrant,
  startCall,
} from "./fixture.ts";
import { startRedis } from "./redis-server.ts";

const folders: string[] = [];
const open: SqliteStore[] = [];
afterAll(async () => {
  for (const store of open) await store.calls.close().catch(() => {});
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-backup-"));
  folders.push(folder);
  return folder;
}

type TestStore = SqliteStore & OpenedStore;

async function openIn(directory: string): Promise<TestStore> {
  const store = await openSqliteStore({ directory, endOpenCall: endOfRestored });
  open.push(store);
  return { ...store, ...unused };
}

/** Opens a store with an ended call, one that waits for an approver, one that runs, and a grant with the call that asked for it. */
async function openUsed(directory: string): Promise<TestStore> {
  const store = await openIn(directory);
  await addSession(store);
  await end(store, "call_ended");
  await store.outputs.append("ses_root", "out_1", Buffer.from("the output"));
  await openAskedCall(store, callRef("call_asked"), ["per_1"]);
  await startCall(store, callRef("call_running"));
  await saveGrant(store, grant("grt_1"));
  return store;
}

const unused = {
  advance() {},
  reopen: () => Promise.reject(new Error("not used")),
  close: async () => {},
};

async function end(store: TestStore, id: string): Promise<void> {
  const ref = callRef(id);
  await store.calls.finishCall({ ref, guard: { fence: await startCall(store, ref) }, part: completed(ref) });
}

/** Writes a backup and returns its path. */
async function backUp(store: TestStore): Promise<string> {
  const file = join(await newFolder(), "backup.tar");
  await pipeline(store.backUp(), createWriteStream(file));
  return file;
}

/** Checks that nothing in a store continues what its copy had open. */
async function expectAdopted(store: TestStore, storeId: string): Promise<void> {
  expect(store.calls.storeId).not.toBe(storeId);
  for (const id of ["call_asked", "call_running"]) {
    const { state } = (await recordOf(store, callRef(id))).part;
    expect(state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
    });
  }
  expect((await store.permissions.findAsk("per_1"))?.settled?.outcome).toBe(PermissionOutcome.WITHDRAWN);
  const here = { root: "ses_root", workspace: "default", agent: "build" };
  expect((await store.permissions.grantsFor(here)).grants).toEqual([]);
  expect(await store.permissions.adoptGrant("ses_root", "grt_1")).toBe(false);
  expect((await store.permissions.listGrants({ includeDead: false, limit: 10 })).map(({ id }) => id)).toEqual([
    "grt_1",
  ]);
  expect((await store.permissions.confirmGrant("grt_1"))?.suspended).toBe(0);
  expect((await store.permissions.grantsFor(here)).grants.map(({ id }) => id)).toEqual(["grt_1"]);
}

describe("a backup", () => {
  test("is restored with what ended, and without continuing what was open", async () => {
    const store = await openUsed(await newFolder());
    const { storeId } = store.calls;
    const file = await backUp(store);
    await end(store, "call_later");
    const ended = await recordOf(store, callRef("call_ended"));
    await store.calls.close();

    const directory = join(await newFolder(), "data");
    const restored = await restoreInto(directory, file);
    expect(restored).toMatchObject({ outputs: 1, calls: 3, grants: 1 });
    const again = await openIn(directory);
    expect(again.calls.storeId).toBe(restored.storeId);
    expect(again.adopted).toBeUndefined();
    expect(await recordOf(again, callRef("call_ended"))).toEqual(ended);
    expect(await again.calls.getCall("ses_root", "call_later")).toBeUndefined();
    const output = await again.outputs.read("ses_root", "out_1", 0, 100);
    expect(Buffer.from(output?.data ?? []).toString()).toBe("the output");
    await expectAdopted(again, storeId);
  });

  test("taken while calls are made has every step acknowledged before it, and no gap", async () => {
    const store = await openUsed(await newFolder());
    const made: string[] = [];
    let isStopped = false;
    const working = (async () => {
      for (let index = 0; !isStopped; index++) {
        await end(store, `busy_${index}`);
        made.push(`busy_${index}`);
      }
    })();
    await expect.poll(() => made.length).toBeGreaterThan(50);
    const before = [...made];
    const file = await backUp(store);
    isStopped = true;
    await working;
    expect(made.length).toBeGreaterThan(before.length);

    const directory = await newFolder();
    await restoreInto(directory, file);
    const again = await openIn(directory);
    for (const id of before) expect((await recordOf(again, callRef(id))).part.state.case).toBe("completed");
    const numbers = (await logOf(again)).map(({ seq }) => Number(seq));
    expect(numbers).toEqual(numbers.map((_, index) => index + 1));
  });

  test("begins again when its first step meets a transaction", async () => {
    const directory = await newFolder();
    const db = new DatabaseSync(join(directory, "toolgate.db"));
    onTestFinished(() => db.close());
    db.exec("PRAGMA journal_mode = WAL; CREATE TABLE kept (value); BEGIN; INSERT INTO kept VALUES (1)");
    const options = { health: { damage: () => undefined }, db, directory, storeId: "sto_1", now: () => 0 };
    const copied = backUpSqlite({ ...options, holdOutputs: () => () => {} }).next();
    // The step runs in another thread, which nothing here sees. It meets the transaction in this time unless the machine stalls.
    await setTimeout(50);
    db.exec("COMMIT");
    expect((await copied).done).toBe(false);
  });

  test("is removed from the data directory when it was sent, also if its reader leaves", async () => {
    const directory = await newFolder();
    const store = await openUsed(directory);
    for await (const bytes of store.backUp()) if (bytes.byteLength > 0) break;
    await backUp(store);
    expect(await readdir(join(directory, "backup"))).toEqual([]);
  });

  test.each<[string, (file: string) => Promise<void>]>([
    ["was cut off", async (file) => writeFile(file, (await readFile(file)).subarray(0, 20_000))],
    ["ends before its manifest", async (file) => writeFile(file, await withoutManifest(file))],
    ["has another byte", async (file) => writeFile(file, flipped(await readFile(file), 5_000))],
    ["has a name that leads elsewhere", (file) => addEntry(file, "output/../../elsewhere")],
    ["has an entry that the manifest lacks", (file) => addEntry(file, "output/ses_root/out_2")],
    ["is another file", (file) => writeFile(file, "text")],
  ])("that %s is refused and changes nothing", async (_name, spoil) => {
    const store = await openUsed(await newFolder());
    const file = await backUp(store);
    await store.calls.close();
    const directory = await newFolder();
    const there = await openIn(directory);
    const { storeId } = there.calls;
    await there.calls.close();
    const before = (await readdir(directory)).toSorted();
    await spoil(file);
    await expect(restoreInto(directory, file)).rejects.toThrow("is not a whole backup");
    expect((await readdir(directory)).toSorted()).toEqual(before);
    expect((await openIn(directory)).calls.storeId).toBe(storeId);
  });

  test("is not restored over a store in use; a store that is stopped is moved aside, also a damaged one", async () => {
    const store = await openUsed(await newFolder());
    const file = await backUp(store);
    const directory = await newFolder();
    const there = await openIn(directory);
    await expect(restoreInto(directory, file)).rejects.toThrow(`in use by process ${process.pid}`);
    await there.calls.close();
    appendFileSync(join(directory, "toolgate.sqlite"), "x");
    await writeFile(join(directory, "toolgate.sqlite"), Buffer.alloc(8_192, 1));
    const { before } = await restoreInto(directory, file);
    expect(await readFile(join(before ?? "", "toolgate.sqlite"))).toEqual(Buffer.alloc(8_192, 1));
    expect((await openIn(directory)).adopted).toBeUndefined();
  });

  test("is not restored over a store that a service opened while it was read", async () => {
    const file = await backUp(await openUsed(await newFolder()));
    const directory = await newFolder();
    await (await openIn(directory)).calls.close();
    const slow = join(await newFolder(), "backup.tar");
    execFileSync("mkfifo", [slow]);
    const restored = expect(restoreInto(directory, slow)).rejects.toThrow(`in use by process ${process.pid}`);
    const pipe = createWriteStream(slow);
    await once(pipe, "open");
    await openIn(directory);
    await pipeline(createReadStream(file), pipe);
    await restored;
    const names = await readdir(directory);
    expect(names.filter((name) => /restore/.test(name))).toEqual([]);
  });

  test("replaces what is left of a store without its database", async () => {
    const file = await backUp(await openUsed(await newFolder()));
    const directory = await newFolder();
    await writeFile(join(directory, "toolgate.sqlite-wal"), "left");
    await mkdir(join(directory, "output"));
    await writeFile(join(directory, "output", "left"), "left");
    const { before = "" } = await restoreInto(directory, file);
    expect((await readdir(before)).toSorted()).toEqual(["output", "toolgate.sqlite-wal"]);
    expect((await openIn(directory)).adopted).toBeUndefined();
  });

  test("of records in Redis is refused with what to do there", async () => {
    const redis = await startRedis();
    const store = await openRedisStore({ url: redis.url, log: { debug() {}, info() {}, warn() {}, error() {} } });
    expect(() => store.backUp()).toThrow("run BGSAVE on each master");
    await store.calls.close();
    await redis.stop();
  });
});

describe("the guard", () => {
  test("lets a store be opened again, after a stop, a crash and a move within the disk", async () => {
    const directory = await newFolder();
    const { storeId } = (await openUsed(directory)).calls;
    const crashed = `${directory}-crashed`;
    folders.push(crashed);
    await open.at(-1)?.calls.close();
    execFileSync("mv", [directory, crashed]);
    const again = await openIn(crashed);
    expect(again.calls.storeId).toBe(storeId);
    expect((await recordOf(again, callRef("call_asked"))).part.state.case).toBe("pending");
  });

  test.each<[string, (directory: string, copy: string) => void]>([
    ["the database alone", (directory, copy) => execFileSync("cp", ["-a", join(copy, "toolgate.sqlite"), directory])],
    ["the directory, in place", (directory, copy) => execFileSync("cp", ["-a", `${copy}/.`, directory])],
    [
      "the directory, as a new one",
      (directory, copy) => {
        execFileSync("rm", ["-r", directory]);
        execFileSync("cp", ["-a", copy, directory]);
      },
    ],
  ])("notices a copy of %s that is put back", async (_name, putBack) => {
    const directory = await newFolder();
    const first = await openUsed(directory);
    const { storeId } = first.calls;
    await first.calls.close();
    const copy = join(await newFolder(), "copy");
    await cp(directory, copy, { recursive: true, preserveTimestamps: true, verbatimSymlinks: true });
    const second = await openIn(directory);
    await end(second, "call_later");
    await second.calls.close();
    putBack(directory, copy);
    await expect(openSqliteStore({ directory })).rejects.toThrow("it was copied back");
    const third = await openIn(directory);
    expect(third.adopted).toMatchObject({ calls: 3, grants: 1 });
    await expectAdopted(third, storeId);
    await third.calls.close();
    expect((await openIn(directory)).adopted).toBeUndefined();
  });

  test("control: without the guard a copy that is put back is not noticed", async () => {
    const directory = await newFolder();
    const first = await openUsed(directory);
    await first.calls.close();
    const copy = join(await newFolder(), "copy");
    await cp(directory, copy, { recursive: true, verbatimSymlinks: true });
    await (await openIn(directory)).calls.close();
    execFileSync("cp", ["-a", join(copy, "toolgate.sqlite"), directory]);
    execFileSync("sqlite3", [join(directory, "toolgate.sqlite"), "DELETE FROM meta WHERE key = 'guard'"]);
    expect((await openIn(directory)).adopted).toBeUndefined();
  });
});

/** Adds an entry in front of the others. */
async function addEntry(file: string, name: string): Promise<void> {
  const packed = await packTar([{ header: { name, size: 4 }, body: "more" }]);
  await writeFile(file, Buffer.concat([packed.subarray(0, 1_024), await readFile(file)]));
}

async function withoutManifest(file: string): Promise<Buffer> {
  const bytes = await readFile(file);
  const at = bytes.indexOf("manifest.json");
  return Buffer.concat([bytes.subarray(0, at), Buffer.alloc(1_024)]);
}

function flipped(bytes: Buffer, at: number): Buffer {
  bytes[at] = (bytes[at] ?? 0) ^ 1;
  return bytes;
}

test("a call that was open in a backup has unknown effects, whether it ran there or not", () => {
  for (const state of [
    { case: "pending" as const, value: { status: "pending" } },
    { case: "running" as const, value: { status: "running" } },
  ]) {
    const part = create(ToolPartSchema, { callId: "c1", state });
    expect(endOfRestored(part, 1).state).toMatchObject({ case: "error", value: { effects: ToolEffects.UNKNOWN } });
  }
});
