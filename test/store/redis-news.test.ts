import { randomUUID } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, toJson, toJsonString } from "@bufbuild/protobuf";
import fc from "fast-check";
import { Redis } from "ioredis";
import { afterAll, afterEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PersonSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { followLog } from "../../src/call/log.ts";
import { fenceOf } from "../../src/call/running.ts";
import { type Credential, hashOfSecret } from "../../src/people/credential.ts";
import { createPeople } from "../../src/people/people.ts";
import { openRecordTable, recordKinds } from "../../src/store/record-tables.ts";
import { createRedisCredentials } from "../../src/store/redis/credentials.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import { type Link, openLink } from "../../src/store/redis/link.ts";
import type { TablePlace } from "../../src/store/redis/marked-hash.ts";
import { createRedisTable } from "../../src/store/redis/record-table.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { parseRedisUrl } from "../../src/store/redis/url.ts";
import { isBroad } from "../breadth.ts";
import { startWire } from "../faults/wire.ts";
import {
  addSession,
  addTree,
  callRef,
  completed,
  kinds,
  logOf,
  type OpenedStore,
  openAskedCall,
  openCall,
  owner,
  pending,
  running,
} from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
const stores: OpenedStore[] = [];

afterEach(async () => {
  for (const store of stores.splice(0)) await store.close();
});
afterAll(() => server.stop());

async function openTwo({ here, there }: { here?: (link: Link) => Link; there?: (link: Link) => Link } = {}) {
  const prefix = randomUUID();
  const two = [
    await openIn(server.url, { prefix, ...(here && { through: here }) }),
    await openIn(server.url, { prefix, ...(there && { through: there }) }),
  ] as const;
  stores.push(...two);
  await addTree(two[0]);
  return { prefix, here: two[0], there: two[1] };
}

test("a record that a replica stores, changes or removes is known at the others by news, and is read once for each change", async () => {
  const reads: string[] = [];
  const options = { url: server.url, prefix: randomUUID(), log: quiet };
  const twice = (link: Link): Link => ({
    ...link,
    async run(...step) {
      await link.run(...step);
      return link.run(...step);
    },
  });
  const here = await openRedisStore({ ...options, through: twice });
  const counting = (link: Link): Link => ({
    ...link,
    command(name, ...args) {
      if (name === "hvals") reads.push(String(args[0]));
      return link.command(name, ...args);
    },
  });
  const there = await openRedisStore({ ...options, through: counting });
  onTestFinished(async () => {
    await here.calls.close();
    await there.calls.close();
  });
  const people = (name: string) => create(PersonRecordSchema, { id: "prs_1", person: { name } });
  const namesThere = () => there.people.current().map(({ person }) => person?.name);
  await here.people.put(people("Ann"));
  await vi.waitFor(() => expect(namesThere()).toEqual(["Ann"]));
  await here.people.put(people("Bob"));
  await vi.waitFor(() => expect(namesThere()).toEqual(["Bob"]));
  expect(await here.people.remove("prs_1")).toMatchObject({ id: "prs_1" });
  expect(await there.people.remove("prs_1")).toBeUndefined();
  await vi.waitFor(() => expect(namesThere()).toEqual([]));
  const count = reads.length;
  for (let i = 0; i < 3; i++) await there.people.refresh();
  expect(reads).toHaveLength(count);
});

test("stores in two databases of one Redis do not hear each other", async () => {
  const prefix = randomUUID();
  const urls = [server.url, server.url, `${server.url}?db=1`, `${server.url}?db=1`];
  const [zero, zeroToo, one, oneToo] = await Promise.all(urls.map((url) => openIn(url, { prefix })));
  if (!zero || !zeroToo || !one || !oneToo) throw new Error("there are four");
  stores.push(zero, zeroToo, one, oneToo);
  const heard = { zeroToo: [] as string[], oneToo: [] as string[] };
  zeroToo.calls.onNews(undefined, (id) => heard.zeroToo.push(id));
  oneToo.calls.onNews(undefined, (id) => heard.oneToo.push(id));
  for (const [store, id] of [
    [zero, "ses_zero"],
    [one, "ses_one"],
  ] as const) {
    await addSession(store, id);
    await openCall(store, callRef("call_1", id, id));
  }
  await vi.waitFor(() => expect([heard.zeroToo, heard.oneToo].every((news) => news.length > 0)).toBe(true));
  expect(new Set(heard.zeroToo)).toEqual(new Set(["ses_zero"]));
  expect(new Set(heard.oneToo)).toEqual(new Set(["ses_one"]));
});

test("of a thousand persons and credentials, each second reads one key of a table, and a change reads that table once", async () => {
  const keys = createKeys(randomUUID());
  const link = await openLink({ address: parseRedisUrl(server.url), keys, defaults: {}, clock: undefined, log: quiet });
  const admin = new Redis(server.nodes[0] ?? {});
  onTestFinished(async () => {
    admin.disconnect();
    await link.close();
  });
  const person = (at: number) => create(PersonRecordSchema, { id: `prs_${at}`, person: { name: `Person ${at}` } });
  const credential = (at: number): Credential => ({
    ...{
      id: `crd_${at}`,
      label: "laptop",
      roles: ["approver"],
      agents: ["*"],
      workspaces: ["*"],
      sha256: hashOfSecret(`${at}`),
    },
    ...{ created: 1, expires: 0, revoked: 0, lineage: [`prs_${at}`] },
  });
  const all = Array.from({ length: 999 }, (_, at) => at + 1);
  const jsonOf = (at: number) => toJsonString(PersonRecordSchema, person(at));
  await admin.hset(keys.records("people"), Object.fromEntries(all.map((at) => [`prs_${at}`, jsonOf(at)])));
  const rows = all.map((at) => [`crd_${at}`, JSON.stringify(credential(at))]);
  await admin.hset(keys.records("credentials"), Object.fromEntries(rows));
  const sent: string[] = [];
  const counted: TablePlace["link"] = {
    run: link.run,
    command(name, ...args) {
      sent.push(`${name} ${args[0]}`);
      return link.command(name, ...args);
    },
  };
  const people = await createRedisTable({ link, keys }, recordKinds.people);
  await people.put(person(0));
  await (await createRedisCredentials({ link, keys })).add(credential(0));
  const [here, credentials] = [
    await createRedisTable({ link: counted, keys }, recordKinds.people),
    await createRedisCredentials({ link: counted, keys }),
  ];
  expect([here.current().length, credentials.current().length]).toEqual([1_000, 1_000]);
  const second = async () => {
    sent.length = 0;
    await Promise.all([here.refresh(), credentials.refresh()]);
    return sent.toSorted();
  };
  const marks = [keys.recordsMark("credentials"), keys.recordsMark("people")].map((key) => `get ${key}`);
  for (let i = 0; i < 5; i++) expect(await second()).toEqual(marks);
  await people.put(person(1_000));
  expect(await second()).toEqual([...marks, `hvals ${keys.records("people")}`]);
  expect(await second()).toEqual(marks);
  expect(here.current()).toHaveLength(1_001);

  // With SQLite they are files, of which each second at most reads the time of change.
  const directory = await mkdtemp(join(tmpdir(), "toolgate-people-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const stored = all.map((at) => toJson(PersonRecordSchema, person(at)));
  await writeFile(join(directory, "people.json"), JSON.stringify({ people: stored }));
  const file = openRecordTable(directory, recordKinds.people);
  const before = file.current();
  for (let i = 0; i < 5; i++) await file.refresh();
  expect(file.current()).toBe(before);
  expect(before).toHaveLength(999);
});

test.each(["file", "Redis"])(
  "in a %s a person who is revoked stays that, whatever else is written then",
  async (kind) => {
    const directory = await mkdtemp(join(tmpdir(), "toolgate-people-"));
    onTestFinished(() => rm(directory, { recursive: true }));
    const keys = createKeys(randomUUID());
    const link = await openLink({
      address: parseRedisUrl(server.url),
      keys,
      defaults: {},
      clock: undefined,
      log: quiet,
    });
    onTestFinished(() => link.close());
    const open = async () =>
      kind === "file"
        ? openRecordTable(directory, recordKinds.people)
        : await createRedisTable({ link, keys }, recordKinds.people);
    const one = await open();
    const other = kind === "file" ? one : await open();
    const [here, there] = [one, other].map((people) =>
      createPeople({ people, note: async () => {}, now: () => 1_000 }),
    );
    if (here === undefined || there === undefined) throw new Error("there are two");
    const by = { id: "admin" };
    for (let n = 0; n < 10; n += 1) {
      const person = create(PersonSchema, { id: `prs_${n}`, name: "Ann" });
      await here.add(person, "");
      await there.refresh();
      await Promise.all([
        here.revoke(by, person.id),
        there.rename(by, person.id, "Amy"),
        there.see(person, { claims: ["sre"] }),
        there.rename(by, person.id, "Ada"),
      ]);
      await there.refresh();
      expect(there.find(person.id)).toMatchObject({ revoked: 1_000, claims: ["sre"] });
    }
  },
);

/** Follows the log of the root session at a replica, and collects its events. */
function follow({ calls }: OpenedStore) {
  const seen: { seq: number; kind: string | undefined }[] = [];
  const stop = new AbortController();
  const reading = (async () => {
    for await (const { event } of followLog(
      calls,
      { sessionId: "ses_root", root: "ses_root", afterSeq: 0 },
      stop.signal,
    ))
      if (event) seen.push({ seq: Number(event.seq), kind: kinds([event])[0] });
  })().catch(() => undefined);
  onTestFinished(() => {
    stop.abort(new Error("the test is over"));
    return reading;
  });
  return seen;
}

/** Records a call of two steps with bytes that are no text in its events. */
async function run(store: OpenedStore, callId: string): Promise<void> {
  const ref = callRef(callId);
  const record = await openCall(store, ref, {
    part: pending(ref, { text: "grün \u0000\u007f € 🙂" }),
    start: running(ref),
  });
  await store.calls.finishCall({ ref, guard: { version: record.version }, part: completed(ref, 'schön / \\ "') });
}

describe("small events in messages", () => {
  test("save a reader at another replica the read of the log", async () => {
    let reads = 0;
    const counting = (link: Link): Link => ({
      ...link,
      read(name, ...rest) {
        if (name === "read_log") reads += 1;
        return link.read(name, ...rest);
      },
    });
    const { here, there } = await openTwo({ there: counting });
    const seen = follow(there);
    let runs = 0;
    /** Runs a call here, and returns how often the log was read there for its three events. */
    const readsOfRun = async () => {
      const before = reads;
      await run(here, `call_${runs++}`);
      await vi.waitUntil(() => seen.length === runs * 3);
      return reads - before;
    };
    // The first news make the reader's replica follow the session.
    await vi.waitUntil(async () => (await readsOfRun()) === 0);
    for (let time = 0; time < 5; time++) expect(await readsOfRun()).toBe(0);
    expect(seen.map(({ kind }) => kind)).toEqual(kinds(await logOf(here)));
    const [event] = (await there.calls.readLog("ses_root", seen.length - 3, 1)).events;
    expect(event).toEqual((await here.calls.readLog("ses_root", seen.length - 3, 1)).events[0]);
  });

  test("keep the order and lack no event, however messages are lost, doubled and reordered", async () => {
    const sizes = fc.array(
      fc.record({ copies: fc.integer({ min: 0, max: 2 }), place: fc.integer({ min: 0, max: 5 }) }),
      {
        minLength: 12,
        maxLength: 12,
      },
    );
    const property = async (plan: { copies: number; place: number }[]) => {
      const elsewhere = randomUUID();
      const diverted = (link: Link): Link => ({
        ...link,
        run: (name, keys, values, bytes) => link.run(name, keys, { ...values, channel: elsewhere }, bytes),
      });
      const { prefix, here, there } = await openTwo({ here: diverted });
      const [relay, sender] = [new Redis(server.nodes[0] ?? {}), new Redis(server.nodes[0] ?? {})];
      const held: { message: string; place: number }[] = [];
      let next = 0;
      let carried = 0;
      relay.on("message", (_, message: string) => {
        if (message.includes('"events"')) carried += 1;
        const { copies, place } = plan[next++ % plan.length] ?? { copies: 1, place: 0 };
        for (let copy = 0; copy < copies; copy++)
          held.splice(Math.min(place * copy + place, held.length), 0, { message, place });
        while (held.length > 3) void sender.publish(`${prefix}:news`, held.shift()?.message ?? "");
      });
      await relay.subscribe(elsewhere);
      const seen = follow(there);
      for (let index = 0; index < 12; index++) {
        await run(here, `call_${index}`);
        if (index % 4 === 0) await openAskedCall(here, callRef(`asked_${index}`), [`per_${elsewhere}_${index}`]);
      }
      for (const { message } of held) await sender.publish(`${prefix}:news`, message);
      const log = await logOf(here);
      await vi.waitUntil(() => seen.length >= log.length, { timeout: 60_000 });
      for (const client of [relay, sender]) client.disconnect();
      expect(seen).toEqual(log.map((event, index) => ({ seq: index + 1, kind: kinds([event])[0] })));
      return carried;
    };
    const found: number[] = [];
    const check = fc.asyncProperty(sizes, async (plan) => {
      found.push(await property(plan));
    });
    await fc.assert(check, { numRuns: isBroad ? 40 : 5, endOnFailure: true });
    expect(Math.max(...found)).toBeGreaterThan(0);
  });
});

describe("an idle replica", () => {
  test("sends fewer than 20 commands a second", async () => {
    const own = await startRedis();
    onTestFinished(() => own.stop());
    const store = await openIn(own.url);
    stores.push(store);
    const admin = new Redis(own.nodes[0] ?? {});
    onTestFinished(() => admin.disconnect());
    /** The store's part of one round of recovery, which the service runs each second. */
    const recover = async () => {
      await store.permissions.dueAsks(100);
      expect(await store.calls.orphans()).toEqual([]);
    };
    await recover();
    await admin.config("RESETSTAT");
    for (let second = 0; second < 10; second++) {
      store.advance(1_000);
      await recover();
    }
    const stats = await admin.info("commandstats");
    const counts = [...stats.matchAll(/cmdstat_([^:]+):calls=(\d+)/g)].filter(
      ([, name]) => !name?.startsWith("config"),
    );
    expect(counts.reduce((sum, [, , calls]) => sum + Number(calls), 0)).toBeLessThan(200);
  });

  test("finds the call of a lost replica in the round after its lease, though it reads the whole list less often", async () => {
    const { here, there } = await openTwo();
    expect(await there.calls.orphans()).toEqual([]);
    const heard = new Promise((resolve) => there.calls.onNews("ses_root", resolve));
    const ref = callRef();
    await openCall(here, ref, { leaseMs: 2_500 });
    await heard;
    const found: number[] = [];
    for (let second = 0; second < 4; second++) {
      found.push((await there.calls.orphans()).length);
      there.advance(1_000);
    }
    expect(found).toEqual([0, 0, 0, 1]);
  });

  test("finds a call that a draining replica releases without waiting for its next read of the list", async () => {
    const { here, there } = await openTwo();
    const ref = callRef();
    await openCall(here, ref);
    expect(await there.calls.orphans()).toEqual([]);
    await here.calls.releaseCalls(owner);
    await vi.waitUntil(async () => (await there.calls.orphans()).length === 1);
  });
});

test.runIf(isBroad)("a connection for news that falls silent is replaced, at the start and later", async () => {
  const [node] = server.nodes;
  if (node === undefined || !("path" in node)) throw new Error("Redis does not listen on a socket");
  let subscriptions = 0;
  const wire = await startWire(node, (reply) => {
    const text = reply.toString("latin1");
    if (text.includes("subscribe")) subscriptions += 1;
    return subscriptions === 1 && /subscribe|PONG/.test(text) ? Buffer.alloc(0) : reply;
  });
  onTestFinished(wire.close);
  stores.push(await openIn(wire.url));
  await vi.waitUntil(() => subscriptions === 2, { timeout: 60_000 });
  wire.set("forget");
  await vi.waitUntil(() => subscriptions === 3, { timeout: 60_000 });
});

test("a step that leaves a call to wait for a worker notifies the other replicas of it", async () => {
  const { here, there } = await openTwo();
  const ref = callRef("call_waits");
  const record = await openCall(here, ref);
  const notified: unknown[] = [];
  there.calls.onUnclaimed((call) => notified.push(call));
  const queued = { definitionId: "definition", until: here.calls.now() + 60_000 };
  const progress = create(ToolProgressSchema, { callId: ref.callId, title: "Waiting for a worker" });
  const step = {
    fence: fenceOf(record),
    version: record.version,
    asks: [],
    withdraw: [],
    message: "",
    maxOpenAsks: 10,
  };
  expect(await here.calls.openAsks({ ...step, dueMs: 0, queued, progress })).toBe(true);
  const [repeated, accepted] = [callRef("call_repeated"), callRef("call_accepted")];
  const atOnce = { queued, progress };
  expect((await openCall(here, repeated, { ...atOnce, maxRepeats: 0 })).owner).toBe(owner);
  expect((await openCall(here, accepted, atOnce)).owner).toBe("");
  await vi.waitUntil(() => notified.length > 1, { timeout: 30_000 });
  expect(notified).toEqual([ref, accepted]);
});
