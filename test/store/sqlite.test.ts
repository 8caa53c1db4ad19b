import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionRecordSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { storeContract } from "./contract.ts";
import {
  addSession,
  callRef,
  callSpec,
  day,
  fenceOf,
  kinds,
  leaseMs,
  logOf,
  type OpenedStore,
  openCall,
  pending,
  recordOf,
  refusal,
  running,
  type StoreOptions,
  startCall,
} from "./fixture.ts";

async function openIn(directory: string, options: StoreOptions = {}): Promise<OpenedStore> {
  let time = Date.now();
  let current: OpenedStore | undefined;
  const openAgain = async (): Promise<OpenedStore> => {
    const store = await openSqliteStore({ directory, auditDays: 90, clock: () => time, ...options });
    const advance = (ms: number) => {
      time += ms;
    };
    const reopen = async () => {
      await current?.calls.close();
      return openAgain();
    };
    current = { ...store, advance, reopen, close: async () => current?.calls.close() };
    return current;
  };
  return openAgain();
}

const directories: string[] = [];

async function newDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-store-"));
  directories.push(directory);
  return directory;
}

afterAll(async () => {
  for (const directory of directories) await rm(directory, { recursive: true });
});

storeContract("sqlite", async (options) => openIn(await newDirectory(), options));

test("retains decisions for 400 days by default", async () => {
  let time = Date.now();
  const store = await openSqliteStore({ directory: await newDirectory(), clock: () => time });
  await store.permissions.recordDecisions("ses_none", [create(DecisionRecordSchema, { sessionId: "ses_none" })]);
  for (const count of [1, 0]) {
    time += (count === 1 ? 399 : 2) * day;
    await store.calls.sweep();
    expect(await store.permissions.listDecisions({ root: "ses_none", afterSeq: 0, limit: 10 })).toHaveLength(count);
  }
  await store.calls.close();
});

test("migrates a store of an earlier version with its calls", async () => {
  const directory = await newDirectory();
  const before = await openIn(directory);
  await addSession(before);
  await openCall(before, callRef());
  await before.calls.close();
  const db = new DatabaseSync(join(directory, "toolgate.sqlite"));
  db.exec(`DROP INDEX calls_by_assignment; ALTER TABLE calls DROP COLUMN assignment; ALTER TABLE calls DROP COLUMN reported;
    ALTER TABLE calls DROP COLUMN repeats; ALTER TABLE calls DROP COLUMN prepared; ALTER TABLE calls DROP COLUMN hooked; ALTER TABLE calls DROP COLUMN memo;
    ALTER TABLE calls DROP COLUMN remote; ALTER TABLE calls DROP COLUMN queued_until;
    DROP TABLE states;
    ALTER TABLE grants DROP COLUMN times; ALTER TABLE grants DROP COLUMN uses;
    DROP INDEX open_asks_by_step; ALTER TABLE asks DROP COLUMN escalates;
    ALTER TABLE sessions DROP COLUMN asks_version; ALTER TABLE grants DROP COLUMN used; ALTER TABLE grants DROP COLUMN suspended;
    ALTER TABLE sessions DROP COLUMN session_crc; ALTER TABLE log DROP COLUMN event_crc; ALTER TABLE grants DROP COLUMN grant_crc;
    ALTER TABLE calls DROP COLUMN spec_crc; ALTER TABLE calls DROP COLUMN snapshot_crc;
    ALTER TABLE asks DROP COLUMN request_crc; ALTER TABLE asks DROP COLUMN settled_crc;
    DROP TABLE decisions; DROP TABLE notices; DROP TABLE receivers; DROP TABLE exports;
    PRAGMA user_version = 1`);
  db.close();
  const store = await openIn(directory);
  expect((await recordOf(store, callRef())).repeats).toBe(0);
  expect((await openCall(store, callRef("call_2"))).repeats).toBe(1);
  await store.calls.close();
  await (await openIn(directory)).calls.close();
});

describe("sqlite", () => {
  const stores: OpenedStore[] = [];
  const writers: ChildProcess[] = [];

  afterEach(async () => {
    for (const writer of writers.splice(0)) {
      if (writer.exitCode !== null || writer.signalCode !== null) continue;
      writer.kill("SIGKILL");
      await once(writer, "exit");
    }
    for (const store of stores.splice(0)) await store.close();
  });

  async function openStore(directory: string): Promise<OpenedStore> {
    const store = await openIn(directory);
    stores.push(store);
    return store;
  }

  /** Starts a writer and reads its lines one by one. */
  function startWriter(directory: string, prefix: string, limit = "unlimited") {
    const command = `ulimit -f ${limit} && exec "$0" "$@"`;
    const args = [process.execPath, join(import.meta.dirname, "writer.ts"), directory, prefix];
    const writer = spawn("sh", ["-c", command, ...args], { stdio: ["ignore", "pipe", "inherit"] });
    writers.push(writer);
    return { writer, lines: createInterface({ input: writer.stdout })[Symbol.asyncIterator]() };
  }

  test("refuses a second process with the id of the first one, until that ends", async () => {
    const directory = await newDirectory();
    const { writer, lines } = startWriter(directory, "call");
    await lines.next();
    await expect(openSqliteStore({ directory })).rejects.toThrow(`in use by process ${writer.pid}`);
    writer.kill("SIGKILL");
    await once(writer, "exit");
    const store = await openStore(directory);
    expect(await store.calls.ready()).toBe(true);
  });

  test("refuses to open a store twice in one process", async () => {
    const directory = await newDirectory();
    await openStore(directory);
    await expect(openSqliteStore({ directory })).rejects.toThrow(`in use by process ${process.pid}`);
  });

  test("refuses a file that is not a database, and leaves it unchanged", async () => {
    const directory = await newDirectory();
    const path = join(directory, "toolgate.sqlite");
    await writeFile(path, "not a database, but somebody's file".repeat(40));
    await expect(openSqliteStore({ directory })).rejects.toThrow(`${path} is not a database`);
    expect(await readFile(path, "utf8")).toBe("not a database, but somebody's file".repeat(40));
  });

  test("has every acknowledged step of a killed process, and no partial one", async () => {
    const directory = await newDirectory();
    const promised: string[] = [];
    for (const round of ["a", "b", "c", "d"]) {
      const { writer, lines } = startWriter(directory, round);
      for (const enough = promised.length + 50; promised.length < enough; ) {
        const line = await lines.next();
        if (line.done === true) throw new Error("the writer ended by itself");
        if (line.value !== "open") promised.push(line.value);
      }
      writer.kill("SIGKILL");
      for (let line = await lines.next(); line.done !== true; line = await lines.next()) promised.push(line.value);
    }
    await expectWhole(await openStore(directory), promised);
  });

  test("ignores a transaction that reached the disk in part", async () => {
    const directory = await newDirectory();
    const { writer, lines } = startWriter(directory, "call");
    for (let count = 0; count < 50; count++) await lines.next();
    writer.kill("SIGKILL");
    await once(writer, "exit");
    const wal = join(directory, "toolgate.sqlite-wal");
    await truncate(wal, (await stat(wal)).size - 2_000);
    await expectWhole(await openStore(directory), []);
  });

  test("reports a full disk, and keeps memory equal to the stored state", async () => {
    const directory = await newDirectory();
    // In blocks of 512 or 1,024 bytes, by shell: capacity for many calls, but not for all.
    const { lines } = startWriter(directory, "call", "1000");
    const promised: string[] = [];
    for (let line = await lines.next(); line.done !== true; line = await lines.next()) promised.push(line.value);
    const [word, reason, lastSeq, held, open] = promised.pop()?.split(" ") ?? [];
    expect([word, Number(reason)]).toEqual(["refused", ErrorReason.STORE_UNAVAILABLE]);
    expect(held).toBe(open);
    expect(promised.length).toBeGreaterThan(10);
    const store = await openStore(directory);
    await expectWhole(store, promised.slice(1));
    expect((await store.calls.getSession("ses_root"))?.lastSeq).toBe(BigInt(lastSeq ?? 0));
  });

  test("commits a hundred concurrent calls in one transaction", async () => {
    const directory = await newDirectory();
    const store = await openStore(directory);
    await addSession(store);
    const before = await countCommits(directory);
    await Promise.all(Array.from({ length: 100 }, (_, index) => openCall(store, callRef(`call_${index}`))));
    expect((await countCommits(directory)) - before).toBe(1);
  });

  test("applies the other steps of a transaction when one fails half-way", async () => {
    const store = await openStore(await newDirectory());
    await addSession(store);
    const call = { spec: callSpec(), owner: "replica_1", leaseMs, maxOpenCalls: 10 };
    const [one, broken, two] = ["call_1", "call_2", "call_3"].map((id) => callRef(id));
    if (!one || !broken || !two) throw new Error("three calls are needed");
    const tooLarge = { ...running(broken), agent: "a".repeat(2 * 1024 * 1024) };
    const results = await Promise.allSettled([
      store.calls.openCall({ ...call, ref: one, part: pending(one), start: running(one) }),
      // Its pending part is written before its running part is refused.
      store.calls.openCall({ ...call, ref: broken, part: pending(broken), start: tooLarge }),
      store.calls.openCall({ ...call, ref: two, part: pending(two) }),
    ]);
    expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "call_1 running", "call_3 pending"]);
    expect((await logOf(store)).map(({ seq }) => seq)).toEqual([1n, 2n, 3n]);
    expect(await store.calls.getCall("ses_root", "call_2")).toBeUndefined();
    expect((await store.calls.listCalls({ sessionId: "ses_root", limit: 10 })).map(({ ref }) => ref.callId)).toEqual([
      "call_1",
      "call_3",
    ]);
  });

  test("ends leases with their process, and keeps fences", async () => {
    const store = await openIn(await newDirectory());
    await addSession(store);
    const fence = fenceOf(await openCall(store, callRef()));
    await startCall(store, callRef("call_started"));
    const reopened = await store.reopen();
    stores.push(reopened);
    const orphans = await reopened.calls.orphans();
    expect(orphans.map((orphan) => [orphan.ref.callId, orphan.started])).toEqual([
      ["call_1", false],
      ["call_started", true],
    ]);
    expect(await reopened.calls.startCall({ fence, version: 1, part: running(callRef()) })).toBe("fenced");
    expect(await reopened.calls.claimCall(callRef(), "replica_2", leaseMs)).toMatchObject({ epoch: 2, version: 2 });
    expect(await reopened.calls.claimCall(callRef("call_started"), "replica_2", leaseMs)).toBeUndefined();
  });

  test("refuses a store of a newer version", async () => {
    const directory = await newDirectory();
    await (await openIn(directory)).close();
    const db = new DatabaseSync(join(directory, "toolgate.sqlite"));
    db.exec("PRAGMA user_version = 99");
    db.close();
    await expect(openSqliteStore({ directory })).rejects.toThrow(/ has format 99, .* knows up to format \d+: start /);
  });

  test("is not readable by other users of the machine", async () => {
    const directory = join(await newDirectory(), "made");
    const store = await openStore(directory);
    await addSession(store);
    await store.outputs.append("ses_root", "out_1", new Uint8Array([1]));
    const mode = async (path: string) => ((await stat(join(directory, path))).mode & 0o777).toString(8);
    for (const folder of [".", "output", "output/ses_root"]) expect(await mode(folder)).toBe("700");
    for (const file of ["toolgate.sqlite", "toolgate.sqlite-wal", "output/ses_root/out_1"]) {
      expect(await mode(file)).toBe("600");
    }
  });

  test("refuses steps and readiness after it was closed", async () => {
    const store = await openIn(await newDirectory());
    await addSession(store);
    await store.close();
    const unavailable = { reason: ErrorReason.STORE_UNAVAILABLE };
    expect(await refusal(openCall(store, callRef()))).toMatchObject(unavailable);
    expect(await refusal(store.calls.listSessions({ limit: 1 }))).toMatchObject(unavailable);
    expect(await store.calls.ready()).toBe(false);
  });
});

/** Checks that the calls exist, that sequence numbers have no gap, and that each record equals its last event. */
async function expectWhole(store: OpenedStore, promised: readonly string[]): Promise<void> {
  for (const callId of promised) expect((await recordOf(store, callRef(callId))).part.state.case).toBe("completed");
  const events = await logOf(store);
  expect(events.map(({ seq }) => Number(seq))).toEqual(events.map((_, index) => index + 1));
  const lastParts = new Map(kinds(events).map((kind): [string, string] => [kind.split(" ")[0] ?? "", kind]));
  const records = await store.calls.listCalls({ sessionId: "ses_root", limit: 100_000 });
  expect(records.map(({ ref, part }) => `${ref.callId} ${part.state.case}`).sort()).toEqual(
    [...lastParts.values()].sort(),
  );
  expect(records.length).toBeGreaterThan(0);
}

/** Counts the transactions in the write-ahead log: the last frame of each has the size of the database after it. */
async function countCommits(directory: string): Promise<number> {
  const wal = await readFile(join(directory, "toolgate.sqlite-wal"));
  const [header, frameHeader, pageSize] = [32, 24, wal.readUInt32BE(8)];
  let commits = 0;
  for (let frame = header; frame < wal.length; frame += frameHeader + pageSize) {
    if (wal.readUInt32BE(frame + 4) !== 0) commits += 1;
  }
  return commits;
}
