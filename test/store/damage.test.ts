import { copyFileSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { isDeepStrictEqual } from "node:util";
import { afterAll, describe, expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { StoreUnusable } from "../../src/store/errors.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { casesOf } from "../breadth.ts";
import {
  addSession,
  askMs,
  callRef,
  completed,
  day,
  grant,
  type OpenedStore,
  openAskedCall,
  openCall,
  refusal,
  saveGrant,
  startCall,
} from "./fixture.ts";

const folders: string[] = [];
const open: { close(): Promise<void> }[] = [];
afterAll(async () => {
  for (const { close } of open) await close().catch(() => {});
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-damage-"));
  folders.push(folder);
  return folder;
}

async function openIn(directory: string, newStore = false): Promise<OpenedStore> {
  const store = await openSqliteStore({ directory, newStore });
  open.push(store.calls);
  const unused = { advance() {}, reopen: () => Promise.reject(new Error("not used")) };
  return { ...store, ...unused, close: store.calls.close };
}

/** Makes a store with a hundred ended calls, ten that wait for approvers, and two grants, and closes it. */
async function makeStore(): Promise<string> {
  const directory = await newFolder();
  const store = await openIn(directory);
  await addSession(store);
  for (let index = 0; index < 100; index++) {
    const ref = callRef(`ended_${index}`);
    const fence = await startCall(store, ref);
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, `output ${index} `.repeat(20)) });
  }
  for (let index = 0; index < 10; index++) await openAskedCall(store, callRef(`asked_${index}`), [`per_${index}`]);
  for (const id of ["grt_1", "grt_2"]) await saveGrant(store, grant(id));
  await store.close();
  return directory;
}

/** Reads all messages of a store: what each read returned, or how it was refused. */
async function readAll(directory: string): Promise<Map<string, unknown>> {
  const store = await openIn(directory);
  const read = new Map<string, unknown>();
  const note = async (name: string, messages: () => Promise<readonly unknown[]>) => {
    try {
      read.set(name, await messages());
    } catch (error) {
      read.set(name, error instanceof RequestError ? error.reason : "broke");
    }
  };
  await note("sessions", () => store.calls.listSessions({ limit: 100 }));
  await note("events", async () => (await store.calls.readLog("ses_root", 0, 100_000_000)).events);
  for (let index = 0; index < 100; index++)
    await note(`part ${index}`, async () => [(await store.calls.getCall("ses_root", `ended_${index}`))?.part]);
  for (let index = 0; index < 10; index++)
    await note(`ask ${index}`, async () => [(await store.permissions.findAsk(`per_${index}`))?.request]);
  await note("grants", () => store.permissions.listGrants({ includeDead: true, limit: 100 }));
  await store.close();
  return read;
}

/** Flips one bit of a database file and compares what is read with what was written. */
async function flip(made: string, at: number, bit: number, written: Map<string, unknown>) {
  const directory = await newFolder();
  for (const name of ["toolgate.sqlite"]) copyFileSync(join(made, name), join(directory, name));
  const bytes = readFileSync(join(directory, "toolgate.sqlite"));
  bytes[at] = (bytes[at] ?? 0) ^ (1 << bit);
  writeFileSync(join(directory, "toolgate.sqlite"), bytes);
  // Without a guard the database would be a copy.
  try {
    dropGuard(directory);
    const read = await readAll(directory);
    const differing = [...written].filter(([name, messages]) => !isDeepStrictEqual(read.get(name), messages));
    const isAltered = ([name]: [string, unknown]) => Array.isArray(read.get(name)) && !isMissing(read.get(name));
    if (differing.some(([name]) => read.get(name) === "broke")) return "broke";
    return differing.length === 0 ? "equal" : differing.some(isAltered) ? "altered" : "refused";
  } catch (error) {
    // SQLite's own error: the guard cannot be dropped from a damaged file.
    if (error instanceof StoreUnusable || (error instanceof Error && "errcode" in error)) return "refused";
    throw error;
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** A record that an index does not find any more; its content is not altered. */
const isMissing = (messages: unknown) => Array.isArray(messages) && messages.every((message) => message === undefined);

function dropGuard(directory: string): void {
  const db = new DatabaseSync(join(directory, "toolgate.sqlite"));
  try {
    db.exec("DELETE FROM meta WHERE key IN ('guard', 'clock')");
  } finally {
    db.close();
  }
}

/** Places of bits, spread over the file; the same ones in each run. */
function placesIn(made: string, count: number): [at: number, bit: number][] {
  const size = readFileSync(join(made, "toolgate.sqlite")).length;
  return Array.from({ length: count }, (_, index) => [
    Math.floor(((index + 0.5) * 0.6180339887 * size) % size),
    index % 8,
  ]);
}

describe("a flipped bit", () => {
  test("of the database is found, or changes no message that is read; control: without checksums it does", async () => {
    const made = await makeStore();
    const plain = await newFolder();
    copyFileSync(join(made, "toolgate.sqlite"), join(plain, "toolgate.sqlite"));
    const db = new DatabaseSync(join(plain, "toolgate.sqlite"));
    db.exec(`UPDATE log SET event_crc = NULL; UPDATE calls SET snapshot_crc = NULL, spec_crc = NULL;
      UPDATE asks SET request_crc = NULL; UPDATE sessions SET session_crc = NULL; UPDATE grants SET grant_crc = NULL`);
    db.close();
    dropGuard(made);
    const written = await readAll(made);
    const places = placesIn(made, casesOf([...Array(600).keys()], [...Array(30).keys()]).length);
    const found = { checked: new Map<string, number>(), plain: new Map<string, number>() };
    for (const [at, bit] of places) {
      for (const [name, directory] of [
        ["checked", made],
        ["plain", plain],
      ] as const) {
        const outcome = await flip(directory, at, bit, written);
        found[name].set(outcome, (found[name].get(outcome) ?? 0) + 1);
      }
    }
    expect(found.checked.get("altered")).toBeUndefined();
    expect(found.checked.get("broke")).toBeUndefined();
    expect(found.checked.get("refused")).toBeGreaterThan(places.length / 10);
    expect(found.plain.get("altered")).toBeGreaterThan(0);
  });

  test("of a message is STORE_DAMAGED, the store is not ready, and it makes no backup", async () => {
    const directory = await newFolder();
    const store = await openIn(directory);
    await addSession(store);
    const [ref, other] = [callRef("ended"), callRef("other")];
    for (const each of [ref, other]) {
      const guard = { fence: await startCall(store, each) };
      await store.calls.finishCall({ ref: each, guard, part: completed(each, "one of the outputs") });
    }
    await store.close();
    const path = join(directory, "toolgate.sqlite");
    const db = new DatabaseSync(path);
    db.exec("UPDATE calls SET snapshot = replace(snapshot, 'one of', 'ONE of') WHERE call_id = 'ended'");
    db.exec("UPDATE calls SET snapshot = CAST(snapshot AS BLOB)");
    db.close();
    const logged: unknown[] = [];
    const note = (message: string) => void logged.push(message);
    const again = await openSqliteStore({
      directory,
      log: { debug: note, info: note, warn: note, error: note },
    });
    open.push(again.calls);
    expect(await again.calls.ready()).toBe(true);
    expect(await refusal(again.calls.getCall("ses_root", "ended"))).toMatchObject({
      reason: ErrorReason.STORE_DAMAGED,
    });
    expect(await refusal(again.calls.getCall("ses_root", "ended"))).toMatchObject({
      reason: ErrorReason.STORE_DAMAGED,
    });
    expect(logged.filter((line) => String(line).includes("the store is damaged"))).toHaveLength(1);
    expect(await again.calls.ready()).toBe(false);
    expect((await again.calls.getCall("ses_root", "other"))?.part.state.case).toBe("completed");
    const backup = Array.fromAsync(again.backUp());
    expect(await refusal(backup)).toMatchObject({ reason: ErrorReason.STORE_DAMAGED });
  });
});

/** Overwrites the pages that hold events; a start does not read them. */
function damageLog(directory: string): void {
  const path = join(directory, "toolgate.sqlite");
  const bytes = readFileSync(path);
  const pageSize = bytes.readUInt16BE(16);
  for (let at = 0; at + pageSize <= bytes.length; at += pageSize) {
    const page = bytes.subarray(at, at + pageSize);
    const isLeaf = page[0] === 0x0d;
    if (isLeaf && page.includes("output 5") && !page.includes("requestDigest")) page.fill(0xff);
  }
  writeFileSync(path, bytes);
}

describe("a database that SQLite finds damaged", () => {
  const damaged = { reason: ErrorReason.STORE_DAMAGED };

  test("serves nothing more once a page cannot be read", async () => {
    const directory = await makeStore();
    damageLog(directory);
    const store = await openIn(directory);
    expect((await store.calls.getCall("ses_root", "ended_5"))?.part.state.case).toBe("completed");
    expect(await refusal(store.calls.readLog("ses_root", 0, 100_000_000))).toMatchObject(damaged);
    expect(await refusal(store.calls.getCall("ses_root", "ended_5"))).toMatchObject(damaged);
    expect(await refusal(openCall(store, callRef("new")))).toMatchObject(damaged);
    expect(await store.calls.ready()).toBe(false);
  });

  test("is refused at the start after a crash; control: after a stop only what is read is checked", async () => {
    const directory = await makeStore();
    damageLog(directory);
    await (await openIn(directory)).close();
    await writeFile(join(directory, "toolgate.pid"), "1\n");
    await expect(openIn(directory)).rejects.toThrow(/is damaged .*toolgate restore/);
  });
});

describe("a damaged record", () => {
  /** Makes a store, damages it while it is closed, and opens it on a machine whose clock can jump. */
  async function openDamaged(fill: (store: OpenedStore) => Promise<void>, damage: string) {
    const directory = await newFolder();
    const made = await openIn(directory);
    for (const id of ["ses_a", "ses_b", "ses_c"]) await addSession(made, id);
    await fill(made);
    await made.close();
    const db = new DatabaseSync(join(directory, "toolgate.sqlite"));
    db.exec(damage);
    db.close();
    let [wall, uptime] = [Date.now(), 0];
    const store = await openSqliteStore({ directory, clock: () => wall, uptime: () => uptime, sleep: () => 0 });
    open.push(store.calls);
    const jump = (ms: number) => {
      wall += ms;
    };
    const advance = (ms: number) => {
      jump(ms);
      uptime += ms;
    };
    const unused = { reopen: () => Promise.reject(new Error("not used")) };
    return { jump, store: { ...store, ...unused, advance, close: store.calls.close } };
  }

  const askTwice = async (store: OpenedStore) => {
    for (const id of ["a", "b"]) await openAskedCall(store, callRef("call_1", `ses_${id}`, `ses_${id}`), [`per_${id}`]);
  };
  const dueIn = async ({ permissions }: OpenedStore, limit = 10) =>
    (await permissions.dueAsks(limit)).map(({ request }) => [request.id, request.expires]);

  test("leaves other requests to expire, also after the clock has jumped", async () => {
    for (const damage of [
      "UPDATE asks SET request_crc = 1 WHERE id = 'per_a'",
      "UPDATE calls SET spec_crc = 1 WHERE session = 1",
    ]) {
      const { store, jump } = await openDamaged(askTwice, damage);
      const [request] = await store.permissions.openRequests({ root: "ses_b", limit: 1 });
      jump(30 * day);
      await openCall(store, callRef("call_2", "ses_b", "ses_b"));
      expect(await dueIn(store)).toEqual([]);
      store.advance(askMs);
      expect(await dueIn(store)).toEqual([["per_b", (request?.expires ?? 0) + 30 * day]]);
      expect(await dueIn(store, 1)).toHaveLength(1);
      expect(await store.calls.ready()).toBe(false);
    }
  });

  test("leaves other results, logs and session trees to be removed, and goes with its tree", async () => {
    const { store } = await openDamaged(async (made) => {
      for (const id of ["ses_a", "ses_b", "ses_c"]) {
        const ref = callRef("call_1", id, id);
        await made.calls.finishCall({ ref, guard: { fence: await startCall(made, ref) }, part: completed(ref) });
      }
    }, "UPDATE calls SET snapshot_crc = 1 WHERE session = 1; UPDATE log SET event_crc = 1 WHERE session = 1; UPDATE sessions SET session_crc = 1 WHERE ordinal = 2");
    store.advance(8 * day);
    await store.calls.sweep();
    expect(await refusal(store.calls.getCall("ses_a", "call_1"))).toEqual({ reason: ErrorReason.STORE_DAMAGED });
    expect(await store.calls.getCall("ses_c", "call_1")).toMatchObject({ expired: true });
    store.advance(100 * day);
    await store.calls.sweep();
    expect(await store.calls.getSession("ses_a")).toBeUndefined();
    expect(await store.calls.getSession("ses_c")).toBeUndefined();
    expect(await refusal(store.calls.getSession("ses_b"))).toEqual({ reason: ErrorReason.STORE_DAMAGED });
  });
});

describe("an empty database", () => {
  test.each(["the guard", "outputs"])(
    "beside %s of another store is refused, unless a new one is wanted",
    async (trace) => {
      const directory = await newFolder();
      const store = await openIn(directory);
      await addSession(store);
      await store.outputs.append("ses_root", "out_1", Buffer.from("output"));
      const { storeId } = store.calls;
      await store.close();
      for (const name of readdirSync(directory).filter((name) => name.startsWith("toolgate.sqlite")))
        await rm(join(directory, name));
      await rm(join(directory, trace === "outputs" ? "toolgate.guard" : "output"), { recursive: true });
      await expect(openIn(directory)).rejects.toThrow("start with --new-store");
      await writeFile(join(directory, "toolgate.sqlite"), "");
      await expect(openIn(directory)).rejects.toThrow("start with --new-store");
      const begun = await openIn(directory, true);
      expect(begun.calls.storeId).not.toBe(storeId);
      await begun.close();
      expect((await openIn(directory)).calls.storeId).toBe(begun.calls.storeId);
    },
  );

  test("in a new directory, also with other files, is a new store", async () => {
    const directory = await newFolder();
    await mkdir(join(directory, "output"));
    await writeFile(join(directory, "credentials.json"), '{"credentials": []}');
    expect(await (await openIn(directory)).calls.ready()).toBe(true);
  });
});

test.each([0.9, 0.5, 0.2, 0.001])(
  "a database cut to %d of its size is named as damaged at the start",
  async (share) => {
    const directory = await makeStore();
    const path = join(directory, "toolgate.sqlite");
    await truncate(path, Math.ceil((await stat(path)).size * share));
    const refused = openIn(directory);
    await expect(refused).rejects.toBeInstanceOf(StoreUnusable);
    await expect(refused).rejects.toThrow(`${path} is damaged (database disk image is malformed): restore a backup`);
  },
);
