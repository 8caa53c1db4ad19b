import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { setImmediate } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { Redis } from "ioredis";
import { afterAll, afterEach, describe, expect, onTestFinished, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionRecordSchema, GrantScope, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Store } from "../../src/call/ports.ts";
import type { CopySettings } from "../../src/store/redis/copies.ts";
import type { Link } from "../../src/store/redis/link.ts";
import { inPortions, text } from "../../src/store/redis/reply.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { storeContract } from "./contract.ts";
import {
  addSession,
  addTree,
  answer,
  callRef,
  completed,
  day,
  fenceOf,
  grant,
  leaseMs,
  logOf,
  type OpenedStore,
  openAskedCall,
  openCall,
  owner,
  pending,
  recordOf,
  refusal,
  running,
  saveGrant,
  startCall,
} from "./fixture.ts";
import { freePorts, type RedisServers, startRedis, startSentinel } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
afterAll(() => server.stop());

storeContract("redis", (options) => openIn(server.url, options));

describe("redis", () => {
  const stores: Pick<Store, "calls">[] = [];
  const servers: RedisServers[] = [];

  afterEach(async () => {
    for (const store of stores.splice(0)) await store.calls.close();
    for (const each of servers.splice(0)) await each.stop();
  });

  async function openTwo(through?: (link: Link) => Link): Promise<[OpenedStore, OpenedStore]> {
    const prefix = randomUUID();
    const two = [
      await openIn(server.url, { prefix, ...(through && { through }) }),
      await openIn(server.url, { prefix }),
    ] as const;
    stores.push(...two);
    return [...two];
  }

  async function ownServer(...settings: string[]): Promise<RedisServers> {
    const own = await startRedis(...settings);
    servers.push(own);
    return own;
  }

  /** Opens a store with Redis' clock. */
  async function openReal(url: string, prefix = "toolgate", copies: CopySettings = {}): Promise<Store> {
    const store = await openRedisStore({ url, prefix, log: quiet, copies });
    stores.push(store);
    return store;
  }

  const ref = callRef();

  test("shares sessions, news and calls between replicas", async () => {
    const [here, there] = await openTwo();
    await addTree(here);
    const heard = new Promise((resolve) => there.calls.onNews("ses_root", (_, seq) => resolve(seq)));
    await openAskedCall(here, callRef("call_1", "ses_child"), ["per_1"]);
    expect(await heard).toBe(1);
    expect(there.calls.storeId).toBe(here.calls.storeId);
    expect(await logOf(there)).toEqual(await logOf(here));
    expect((await there.permissions.openAsks({ limit: 10 })).map(({ request }) => request.id)).toEqual(["per_1"]);
    const once = await answer(there, callRef("call_1", "ses_child"), "per_1");
    expect(await there.permissions.settle(once)).toEqual({ result: "won" });
    expect((await recordOf(here, callRef("call_1", "ses_child"))).part.permissionIds).toEqual([]);
  });

  test("reads for a page of open asks about as many of each tree as it holds, not all", async () => {
    const read: string[] = [];
    const [here, there] = await openTwo((link) => ({
      ...link,
      async read(name, names, ...args) {
        const reply = await link.read(name, names, ...args);
        if (name === "read_open") read.push(...(text(reply).match(/per_\S+/g) ?? []));
        return reply;
      },
    }));
    const trees = ["ses_a", "ses_b"];
    for (const id of trees) {
      await addSession(there, id);
      const ids = Array.from({ length: 40 }, (_, i) => `per_${id}_${String(i).padStart(2, "0")}`);
      await openAskedCall(there, callRef("call_1", id, id), ids);
    }
    const found = await here.permissions.openAsks({ limit: 4 });
    expect(found.map(({ request }) => request.id)).toEqual([0, 1, 2, 3].map((i) => `per_ses_a_0${i}`));
    expect(read.length).toBeLessThan(20);
  });

  test("reads a page from many trees in three commands", async () => {
    const reads: string[] = [];
    const [here, there] = await openTwo((link) => ({
      ...link,
      command(name, ...args) {
        reads.push(name);
        return link.command(name, ...args);
      },
      read(name, names, ...args) {
        reads.push(name);
        return link.read(name, names, ...args);
      },
    }));
    const open = async (id: string, count: number) => {
      await addSession(there, id);
      const ids = Array.from({ length: count }, (_, i) => `per_${id}_${String(i).padStart(2, "0")}`);
      await openAskedCall(there, callRef("call_1", id, id), ids);
    };
    await open("ses_first", 20);
    for (let i = 0; i < 20; i += 1) await open(`ses_${i}`, 1);
    reads.length = 0;
    const found = await here.permissions.openRequests({ limit: 30 });
    const others = Array.from({ length: 10 }, (_, i) => `ses_${i}`);
    expect(found.map(({ sessionId }) => sessionId)).toEqual([...Array(20).fill("ses_first"), ...others]);
    expect(reads).toEqual(["read_live", "read_open", "read_requests"]);
  });

  test("goes on after a request that was settled in short reads, however many others are open", async () => {
    const counts: number[] = [];
    const [here, there] = await openTwo((link) => ({
      ...link,
      read(name, names, ...args) {
        if (name === "read_open") counts.push(Number(args[1]));
        return link.read(name, names, ...args);
      },
    }));
    const ids = Array.from({ length: 1_210 }, (_, i) => `per_${String(i).padStart(4, "0")}`);
    for (const [turn, some] of inPortions(ids, 110).entries()) {
      const id = `ses_${turn % 3}`;
      await addSession(there, id);
      await openAskedCall(there, callRef(`call_${turn}`, id, id), some);
    }
    await there.permissions.settle(await answer(there, callRef("call_10", "ses_1", "ses_1"), "per_1105"));
    const found = await here.permissions.openRequests({ after: "per_1105", limit: 3 });
    expect(found.map(({ id }) => id)).toEqual(["per_1106", "per_1107", "per_1108"]);
    expect(await here.permissions.openRequests({ after: "unknown", limit: 3 })).toEqual([]);
    expect(counts.length).toBeGreaterThan(2);
    expect(Math.max(...counts)).toBeLessThan(600);
  });

  test("leaves out a request that is settled while its page is read, and reads on", async () => {
    let hasStarted = false;
    const [here, there] = await openTwo((link) => ({
      ...link,
      async read(name, names, ...args) {
        if (name === "read_requests" && !hasStarted) {
          hasStarted = true;
          await there.permissions.settle(await answer(there, ref, "per_1"));
        }
        return await link.read(name, names, ...args);
      },
    }));
    await addTree(there);
    await openAskedCall(there, ref, ["per_1", "per_2", "per_3"]);
    expect((await here.permissions.openRequests({ limit: 2 })).map(({ id }) => id)).toEqual(["per_2", "per_3"]);
  });

  test("leaves out a call that is removed while its page is read, and reads on", async () => {
    let hasStarted = false;
    const [here, there] = await openTwo((link) => ({
      ...link,
      async hashes(...names) {
        if (names.length > 1 && !hasStarted) {
          hasStarted = true;
          await there.calls.sweep();
        }
        return await link.hashes(...names);
      },
    }));
    await addSession(there);
    for (const callId of ["call_1", "call_2", "call_3", "call_4"]) await openCall(there, callRef(callId));
    await there.calls.finishCall({ ref: callRef("call_2"), guard: { version: 1 }, part: completed(callRef("call_2")) });
    there.advance(30 * day);
    const listed = await here.calls.listCalls({ sessionId: "ses_root", limit: 3 });
    expect(listed.map(({ ref }) => ref.callId)).toEqual(["call_1", "call_3", "call_4"]);
  });

  test("reads events of other replicas from the time without subscribers", async () => {
    const [here, there] = await openTwo();
    await addSession(here);
    const silence = here.calls.onNews("ses_root", () => undefined);
    await openCall(here, callRef("call_1"));
    expect((await logOf(here)).map(({ seq }) => Number(seq))).toEqual([1]);
    silence();
    await openCall(there, callRef("call_2"));
    onTestFinished(here.calls.onNews("ses_root", () => undefined));
    expect((await logOf(here)).map(({ seq }) => Number(seq))).toEqual([1, 2]);
    const heard = new Promise((resolve) => onTestFinished(here.calls.onNews("ses_root", (_, seq) => resolve(seq))));
    await openCall(there, callRef("call_3"));
    expect(await heard).toBe(3);
    expect((await here.calls.readLog("ses_root", 1, 1)).lastSeq).toBe(3);
    expect((await logOf(here)).map(({ seq }) => Number(seq))).toEqual([1, 2, 3]);
  });

  test("lets exactly one of the answers at two replicas win", async () => {
    const two = await openTwo();
    const [here] = two;
    await addSession(here);
    for (let round = 0; round < 20; round++) {
      const call = callRef(`call_${round}`);
      await openAskedCall(here, call, [`per_${round}`]);
      const answers = await Promise.all(
        two.map((store, index) => answer(store, call, `per_${round}`, { by: `p${index}` })),
      );
      const results = await Promise.all(answers.map((each, index) => two[index]?.permissions.settle(each)));
      expect(results.map((result) => result?.result).sort()).toEqual(["lost", "won"]);
    }
  });

  test("finds and claims the call of a lost replica", async () => {
    const [here, there] = await openTwo();
    await addSession(here);
    const fence = fenceOf(await openCall(here, ref));
    there.advance(leaseMs);
    expect((await there.calls.orphans()).map((orphan) => orphan.ref)).toEqual([ref]);
    expect(await there.calls.claimCall(ref, "replica_2", leaseMs)).toMatchObject({ owner: "replica_2", epoch: 2 });
    expect(await here.calls.startCall({ fence, version: 2, part: running(ref) })).toBe("fenced");
    expect(await here.calls.renewLeases(owner, leaseMs)).toEqual([]);
  });

  test("starts no call at another replica after a revocation", async () => {
    const [here, there] = await openTwo();
    await addTree(here);
    await addSession(here, "ses_other");
    await saveGrant(here, grant("grt_1", { scope: GrantScope.PROJECT }));
    const other = callRef("call_1", "ses_other", "ses_other");
    const fence = fenceOf(await openCall(there, other));
    const tree = { root: "ses_other", workspace: "default", agent: "build" };
    const { grants, rulesVersion } = await there.permissions.grantsFor(tree);
    expect(grants.map(({ id }) => id)).toEqual(["grt_1"]);
    expect(await there.permissions.adoptGrant("ses_other", "grt_1")).toBe(true);
    await here.permissions.revokeGrant("grt_1");
    expect(await there.calls.startCall({ fence, version: 1, rulesVersion, part: running(other) })).toBe("retry");
  });

  test("moves a wider grant to its slot after its replica was lost", async () => {
    const dying = (link: Link): Link => ({
      ...link,
      run: (name, ...step) => (name === "save_grant" ? Promise.reject(new Error("died")) : link.run(name, ...step)),
    });
    const [here, there] = await openTwo(dying);
    await addSession(here);
    await openAskedCall(here, ref, ["per_1"]);
    const wide = grant("grt_1", { scope: GrantScope.PROJECT });
    const always = await answer(here, ref, "per_1", { outcome: PermissionOutcome.ALWAYS, grants: [wide] });
    expect(await here.permissions.settle(always)).toEqual({ result: "won" });
    // The grant serves its own tree at once.
    const own = await there.permissions.grantsFor({ root: "ses_root", workspace: "default", agent: "build" });
    expect(own.grants).toMatchObject([{ id: "grt_1" }]);
    await there.calls.orphans();
    const tree = { root: "ses_other", workspace: "default", agent: "build" };
    expect((await there.permissions.grantsFor(tree)).grants).toMatchObject([{ id: "grt_1" }]);
  });

  test("stops checking a tree without open calls, and resumes when a call opens", async () => {
    const [here, there] = await openTwo();
    await addSession(here);
    const record = await openCall(here, ref);
    await here.calls.finishCall({ ref, guard: { fence: fenceOf(record) }, part: completed(ref) });
    there.advance(leaseMs);
    await there.calls.orphans();
    // The first replica still caches the earlier generation of the tree.
    await openAskedCall(here, callRef("call_2"), ["per_1"]);
    expect((await there.permissions.openAsks({ limit: 10 })).map(({ request }) => request.id)).toEqual(["per_1"]);
  });

  test("polls for news whose message was lost", async () => {
    const mute = (link: Link): Link => ({
      ...link,
      run: (name, keys, values, bytes) => link.run(name, keys, { ...values, channel: "nowhere" }, bytes),
    });
    const [here, there] = await openTwo(mute);
    await addTree(here);
    await openCall(here, callRef("call_1", "ses_child"));
    const bell = () => {
      let ring: (id: string) => void = () => {};
      const rung = new Promise<string>((resolve) => {
        ring = resolve;
      });
      return { ring, rung };
    };
    const [one, all] = [bell(), bell()];
    there.calls.onNews("ses_child", one.ring);
    there.calls.onNews(undefined, all.ring);
    // Events before the first poll are not news, so there must be one after it.
    const written: Promise<unknown>[] = [];
    const writing = setInterval(() => {
      written.push(openCall(here, callRef(`call_${written.length + 2}`, "ses_child")));
    }, 100);
    expect(await one.rung).toBe("ses_child");
    expect(await all.rung).toBe("ses_child");
    clearInterval(writing);
    await Promise.all(written);
  });

  test("agrees between replicas with one policy, and not with another policy", async () => {
    const prefix = randomUUID();
    const [one, other] = [await openReal(server.url, prefix), await openReal(server.url, prefix)];
    expect(await one.calls.agrees("policy 1", "start")).toBe(true);
    expect(await other.calls.agrees("policy 1", "start")).toBe(true);
    expect(await other.calls.agrees("policy 2")).toBe(false);
    // The latest start or reload decides; what it replaced comes back by a reload only.
    expect(await other.calls.agrees("policy 2", "start")).toBe(true);
    expect(await one.calls.agrees("policy 1")).toBe(false);
    expect(await one.calls.agrees("policy 1", "start")).toBe(false);
    expect(await other.calls.agrees("policy 2")).toBe(true);
    expect(await one.calls.agrees("policy 1", "reload")).toBe(true);
    expect(await other.calls.agrees("policy 2")).toBe(false);
  });

  test("ends leases by Redis' clock", async () => {
    const { calls } = await openReal(server.url, randomUUID());
    await addSession({ calls });
    await openCall({ calls }, callRef("call_long"));
    await openCall({ calls }, ref, { leaseMs: 50 });
    const claim = () => calls.claimCall(ref, "replica_2", leaseMs);
    for (let claimed = await claim(); claimed === undefined; ) claimed = await claim();
    expect(await calls.claimCall(callRef("call_long"), "replica_2", leaseMs)).toBeUndefined();
    expect(Math.abs(calls.now() - Date.now())).toBeLessThan(1_000);
  });

  test("gives no key of a record a TTL, which a jump of Redis' clock would end", async () => {
    const prefix = randomUUID();
    const store = await openIn(server.url, { prefix });
    stores.push(store);
    await addTree(store);
    await saveGrant(store, grant("grt_1"));
    await saveGrant(store, grant("grt_2", { scope: GrantScope.PROJECT }));
    await store.permissions.revokeGrant("grt_1");
    await store.calls.recordRead("ses_root", "/w/a", "1");
    await store.outputs.append("ses_root", "out_1", new Uint8Array(100_000));
    await startCall(store, ref);
    await openAskedCall(store, callRef("call_2", "ses_child"), ["per_1"]);
    await store.calls.finishCall({ ref, guard: { version: 2 }, part: completed(ref) });

    const redis = new Redis(server.nodes[0] ?? {});
    const names = await redis.keys(`${prefix}:*`);
    const ending = await Promise.all(names.map(async (name) => ((await redis.pttl(name)) < 0 ? [] : [name])));
    redis.disconnect();
    expect(names.length).toBeGreaterThan(80);
    expect(ending.flat().filter((name) => !/:operation:/.test(name))).toEqual([]);
  });

  test("continues the audit behind a link that a replica of an older version appended", async () => {
    const prefix = randomUUID();
    const store = await openIn(server.url, { prefix });
    stores.push(store);
    await addTree(store);
    const decided = async (callId: string) => {
      const call = callRef(callId);
      const decisions = [create(DecisionRecordSchema, { sessionId: "ses_root", callId, digest: callId })];
      await openCall(store, call, { start: running(call), decisions });
    };
    await decided("call_1");
    const redis = new Redis(server.nodes[0] ?? {});
    // Such a replica leaves the tree's head as it is.
    const [tree = ""] = await redis.keys(`${prefix}:*:tree`);
    const head = await redis.hgetall(tree);
    await decided("call_2");
    await redis.hset(tree, { audited: head.audited ?? "", auditHash: head.auditHash ?? "" });
    redis.disconnect();
    await decided("call_3");
    const entries = await store.permissions.listDecisions({ root: "ses_root", afterSeq: 0, limit: 10 });
    expect(entries.map(({ seq }) => seq)).toEqual([1n, 2n, 3n]);
    expect(entries.map(({ previous }) => previous)).toEqual(["", entries[0]?.hash, entries[1]?.hash]);
  });

  test("treats an emptied Redis as another store", async () => {
    const own = await ownServer();
    const { calls } = await openReal(own.url);
    await addSession({ calls });
    await openCall({ calls }, ref);
    const before = calls.storeId;
    await own.restart();
    await until(() => calls.ready());
    expect(calls.storeId).not.toBe(before);
    expect(await calls.getSession("ses_root")).toBeUndefined();
    expect(await calls.renewLeases(owner, leaseMs)).toEqual([]);
    expect((await openReal(own.url)).calls.storeId).toBe(calls.storeId);
  });

  test("agrees on the id of an empty store between concurrent replicas", async () => {
    const prefix = randomUUID();
    const opened = await Promise.all(Array.from({ length: 5 }, () => openReal(server.url, prefix)));
    expect(new Set(opened.map(({ calls }) => calls.storeId)).size).toBe(1);
  });

  test("reports an unreachable Redis without waiting for long", async () => {
    const own = await ownServer();
    const { calls, permissions, outputs } = await openReal(own.url);
    await addSession({ calls });
    expect(await calls.ready()).toBe(true);
    await own.stop();
    const unavailable = { reason: ErrorReason.STORE_UNAVAILABLE };
    expect(await refusal(openCall({ calls }, ref))).toMatchObject(unavailable);
    expect(await refusal(permissions.openAsks({ limit: 1 }))).toMatchObject(unavailable);
    expect(await refusal(outputs.append("ses_root", "out_1", new Uint8Array(1)))).toMatchObject(unavailable);
    expect(await calls.ready()).toBe(false);
  });

  test("is not ready while Redis has no memory for writes", async () => {
    const own = await ownServer();
    const { calls } = await openReal(own.url);
    const admin = new Redis(own.nodes[0] ?? {});
    expect(await calls.ready()).toBe(true);
    await admin.config("SET", "maxmemory", "1");
    expect(await calls.ready()).toBe(false);
    await admin.config("SET", "maxmemory", "0");
    expect(await calls.ready()).toBe(true);
    admin.disconnect();
  });

  test("refuses steps and readiness after it was closed", async () => {
    const { calls } = await openReal(server.url, randomUUID());
    await calls.close();
    stores.pop();
    expect(await refusal(calls.listSessions({ limit: 1 }))).toMatchObject({ reason: ErrorReason.STORE_UNAVAILABLE });
    expect(await calls.ready()).toBe(false);
  });

  test("refuses a Redis that may evict keys, and names the setting", async () => {
    const own = await ownServer("--maxmemory-policy", "allkeys-lru");
    await expect(openReal(own.url)).rejects.toThrow("CONFIG SET maxmemory-policy noeviction");
  });

  test("refuses a node of a cluster behind the URL of a single Redis, and names the form of a cluster", async () => {
    const [port = 0] = await freePorts(1);
    const address = ["--bind", "127.0.0.1", "--cluster-announce-ip", "127.0.0.1", "--port", `${port}`];
    const own = await ownServer("--cluster-enabled", "yes", ...address);
    const node = new Redis(port);
    await node.call("cluster", "addslotsrange", 0, 16_383);
    node.disconnect();
    for (const url of [own.url, `redis://127.0.0.1:${port}`])
      await expect(openReal(url)).rejects.toThrow(/cluster mode.* write redis\+cluster:\/\/host:port/);
    const { calls } = await openReal(`redis+cluster://127.0.0.1:${port}`);
    await addSession({ calls });
    expect(await logOf({ calls })).toEqual([]);
  });

  test("refuses a Redis that is too old, and names the needed version", async () => {
    // A fake server reports an old version, since none is installed.
    const own = await ownServer();
    const [{ path }] = own.nodes as [{ path: string }];
    const aged = createServer((client) => {
      const redis = connect(path);
      client.pipe(redis).on("close", () => client.destroy());
      redis.on("data", (answer) =>
        client.write(answer.toString("latin1").replace("redis_version:7", "redis_version:6"), "latin1"),
      );
      client.on("close", () => redis.destroy());
    }).listen(`${path}.old`);
    onTestFinished(() => void aged.close());
    await once(aged, "listening");
    await expect(openReal(`redis+unix://${path}.old`)).rejects.toThrow(
      /has version 6\..*: the store needs 7\.0 or later/,
    );
  });

  test("refuses a whole step when the memory of Redis is full", async () => {
    const own = await ownServer("--maxmemory", "4mb");
    const { calls } = await openReal(own.url);
    await addSession({ calls });
    let opened = 0;
    const fill = async () => {
      for (; ; opened++) {
        const call = callRef(`call_${opened}`);
        await openCall({ calls }, call, { part: pending(call, { text: "x".repeat(10_000) }) });
      }
    };
    expect(await refusal(fill())).toMatchObject({ reason: ErrorReason.STORE_UNAVAILABLE });
    expect(await calls.getCall("ses_root", `call_${opened}`)).toBeUndefined();
    expect(await calls.listCalls({ sessionId: "ses_root", limit: 1_000 })).toHaveLength(opened);
    expect(await logOf({ calls })).toHaveLength(opened);
  });

  test("connects through sentinels to the master, also after a failover", async () => {
    const own = await startSentinel();
    servers.push(own);
    // Its copy becomes the master, and has none itself: a store that had counted it would wait for one.
    const { calls } = await openReal(own.url, "toolgate", { strict: false });
    await addSession({ calls });
    await own.restart();
    await until(() => calls.ready());
    expect(await calls.getSession("ses_root")).toMatchObject({ id: "ses_root" });
    await openCall({ calls }, ref);
  });
});

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await setImmediate();
}
