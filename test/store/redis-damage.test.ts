import { randomUUID } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { Redis } from "ioredis";
import { afterAll, describe, expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../../src/core/logger.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { casesOf } from "../breadth.ts";
import {
  addSession,
  askMs,
  callRef,
  completed,
  day,
  failed,
  grant,
  type OpenedStore,
  openAskedCall,
  refusal,
  saveGrant,
  startCall,
} from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn } from "./redis-store.ts";

const server = await startRedis();
const redis = new Redis(server.nodes[0] ?? {});
const open: { close(): Promise<void> }[] = [];

afterAll(async () => {
  for (const { close } of open) await close();
  redis.disconnect();
  await server.stop();
});

/** A store with ended calls, one that waits for approvers, answered and withdrawn requests, and a grant. */
async function makeStore() {
  const prefix = randomUUID();
  const store = await openIn(server.url, { prefix });
  open.push(store);
  await addSession(store);
  for (const id of ["ended_1", "ended_2"]) {
    const ref = callRef(id);
    const fence = await startCall(store, ref);
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, `output of ${id} `.repeat(9)) });
  }
  await openAskedCall(store, callRef("asked"), ["per_1", "per_2"]);
  await openAskedCall(store, callRef("withdrawn"), ["per_3"]);
  const guard = { version: (await store.calls.getCall("ses_root", "withdrawn"))?.version ?? 0 };
  await store.calls.finishCall({ ref: callRef("withdrawn"), guard, part: failed(callRef("withdrawn")) });
  await saveGrant(store, grant("grt_1"));
  return { store, tree: createKeys(prefix).tree("ses_root") };
}

type Made = Awaited<ReturnType<typeof makeStore>>;

/** Reads all messages of a store: what each read returned, or how it was refused. */
async function readAll({ calls, permissions }: OpenedStore): Promise<Map<string, unknown>> {
  const read = new Map<string, unknown>();
  const note = async (name: string, messages: Promise<unknown>) => {
    const refused = (error: unknown) => (error instanceof RequestError ? error.reason : `broke: ${error}`);
    read.set(name, await messages.catch(refused));
  };
  await note("session", calls.getSession("ses_root"));
  await note("events", calls.readLog("ses_root", 0, 100_000_000));
  for (const id of ["ended_1", "ended_2", "asked", "withdrawn", "call_of_grt_1"])
    await note(id, calls.getCall("ses_root", id));
  for (const id of ["per_1", "per_2", "per_3", "per_of_grt_1"]) await note(id, permissions.findAsk(id));
  await note("grants", permissions.listGrants({ includeDead: true, limit: 100 }));
  return read;
}

/** A stored message, which can be replaced. */
interface Stored {
  key: string;
  bytes: Buffer;
  replace(bytes: Buffer): Promise<unknown>;
}

async function fieldsOf(key: string, wanted?: readonly string[]): Promise<Stored[]> {
  return Object.entries(await redis.hgetallBuffer(key))
    .filter(([field]) => wanted?.includes(field) ?? true)
    .map(([field, bytes]) => ({ key: `${key} ${field}`, bytes, replace: (other) => redis.hset(key, field, other) }));
}

async function entriesOf(key: string): Promise<Stored[]> {
  const entries = await redis.xrangeBuffer(key, "-", "+");
  return entries.map(([, fields], index) => ({
    key: `${key} ${index}`,
    bytes: fields[5] ?? Buffer.alloc(0),
    async replace(other) {
      const all = entries.map(([id, each], at) => [id, ...each.with(5, at === index ? other : (each[5] ?? other))]);
      const step = redis.multi().del(key);
      for (const [id = "", ...each] of all) step.xadd(key, id, ...each);
      await step.exec();
    },
  }));
}

/** All messages with a checksum: those of the log, and the others. */
async function storedIn({ tree }: Made): Promise<Stored[]> {
  const calls = ["ended_1", "asked", "withdrawn"].map((id) => fieldsOf(tree.call(`ses_root:${id}`), ["part", "spec"]));
  const hashes = [tree.asked, tree.settled, tree.grants].map((key) => fieldsOf(key));
  const session = fieldsOf(tree.session("ses_root"), ["body"]);
  return (await Promise.all([session, entriesOf(tree.log("ses_root")), ...calls, ...hashes])).flat();
}

/** Flips bits of each message, one at a time, and expects that each read of it is refused; returns how many. */
async function flipAll(made: Made, written: Map<string, unknown>): Promise<number> {
  let flips = 0;
  for (const { key, bytes, replace } of await storedIn(made)) {
    // The end of JSON is the checksum.
    const length = key.endsWith(" spec") ? bytes.lastIndexOf(',"crc"') : bytes.byteLength;
    for (const index of casesOf([...Array(40).keys()], [0])) {
      const at = Math.floor(((index + 0.5) * 0.6180339887 * length) % length);
      const flipped = Buffer.from(bytes);
      flipped[at] = (flipped[at] ?? 0) ^ (1 << (index % 8));
      await replace(flipped);
      const read = await readAll(made.store);
      const differing = [...written].filter(([name, message]) => !isDeepStrictEqual(read.get(name), message));
      const found = new Set(differing.map(([name]) => read.get(name)));
      expect([...found], `${key}: bit ${index % 8} of byte ${at} of ${length}`).toEqual([ErrorReason.STORE_DAMAGED]);
      flips += 1;
    }
    await replace(bytes);
  }
  expect(await readAll(made.store)).toEqual(written);
  return flips;
}

describe("a flipped bit in Redis", () => {
  test("of a message is found, in each message that a step has written", async () => {
    const made = await makeStore();
    const written = await readAll(made.store);
    expect([...written.values()].filter((message) => typeof message !== "object")).toEqual([]);
    const count = await flipAll(made, written);
    expect(count).toBeGreaterThan(20);
  });

  test("changes what is read where versions before checksums wrote, whose records stay readable", async () => {
    const made = await makeStore();
    const written = await readAll(made.store);
    for (const { key, bytes, replace } of await storedIn(made)) {
      const isJson = key.endsWith(" spec");
      await replace(isJson ? Buffer.from(bytes.toString().replace(/,"crc":\d+}$/, "}")) : bytes.subarray(0, -6));
    }
    expect(await readAll(made.store)).toEqual(written);
    const [session] = await storedIn(made);
    await session?.replace(Buffer.from(session.bytes.toString("latin1").replace("alice", "alicf"), "latin1"));
    expect((await made.store.calls.getSession("ses_root"))?.owner).toBe("alicf");
  });
});

test("an event that is gone, and the record of another call, are found", async () => {
  const { store, tree } = await makeStore();
  const damaged = { reason: ErrorReason.STORE_DAMAGED };
  const last = (await redis.xrevrange(tree.log("ses_root"), "+", "-", "COUNT", 1))[0]?.[0] ?? "";
  await redis.xdel(tree.log("ses_root"), last);
  expect(await refusal(store.calls.readLog("ses_root", Number.parseInt(last, 10) - 1, 1))).toMatchObject(damaged);
  await redis.xdel(tree.log("ses_root"), "2-0");
  expect((await store.calls.readLog("ses_root", 0, 1)).events).toHaveLength(1);
  expect(await refusal(store.calls.readLog("ses_root", 1, 1))).toMatchObject(damaged);
  const other = (await redis.hgetBuffer(tree.call("ses_root:ended_2"), "part")) ?? Buffer.alloc(0);
  await redis.hset(tree.call("ses_root:ended_1"), "part", other);
  expect(await refusal(store.calls.getCall("ses_root", "ended_1"))).toMatchObject(damaged);
});

test("a damaged request leaves the others to expire", async () => {
  const { store, tree } = await makeStore();
  await redis.hset(tree.asked, "per_1", Buffer.from("damage"));
  store.advance(askMs);
  for (const limit of [10, 1])
    expect((await store.permissions.dueAsks(limit)).map(({ request }) => request.id)).toEqual(["per_2"]);
  expect(await store.calls.ready()).toBe(false);
});

test("damage is logged once, with what to do; the store is not ready, and the sweep goes on", async () => {
  const { store, tree } = await makeStore();
  const logged: string[] = [];
  const note = (message: string, fields?: object) => void logged.push(`${message} ${JSON.stringify(fields)}`);
  const log: Logger = { debug: note, info: note, warn: note, error: note };
  const prefix = tree.tree.slice(0, tree.tree.indexOf(":{"));
  const clock = () => store.calls.now() + 8 * day;
  const other = await openRedisStore({ url: server.url, prefix, log, clock });
  open.push(other.calls);
  expect(await other.calls.ready()).toBe(true);
  const key = tree.call("ses_root:ended_1");
  const part = (await redis.hgetBuffer(key, "part")) ?? Buffer.alloc(0);
  await redis.hset(key, "part", Buffer.from(part.toString("latin1").replace("output of", "OUTPUT of"), "latin1"));
  for (let count = 0; count < 2; count++)
    expect(await refusal(other.calls.getCall("ses_root", "ended_1"))).toMatchObject({
      reason: ErrorReason.STORE_DAMAGED,
    });
  expect(logged.filter((line) => line.includes("the store is damaged: stop the service and restore"))).toHaveLength(1);
  expect(await other.calls.ready()).toBe(false);
  await other.calls.sweep();
  expect((await other.calls.getCall("ses_root", "ended_2"))?.expired).toBe(true);
  expect(await redis.hexists(key, "expired")).toBe(0);
});
