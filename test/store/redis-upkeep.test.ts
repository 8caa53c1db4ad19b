import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { Redis } from "ioredis";
import { afterAll, describe, expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionKind, DecisionRecordSchema, GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { linkHash } from "../../src/store/parts.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import type { Link } from "../../src/store/redis/link.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import {
  addSession,
  addTree,
  callRef,
  completed,
  day,
  failed,
  fenceOf,
  grant,
  type OpenedStore,
  openAskedCall,
  openCall,
  refusal,
  running,
  saveGrant,
} from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
const redis = new Redis(server.nodes[0] ?? {});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

async function openOwn() {
  const prefix = randomUUID();
  return { prefix, store: await openIn(server.url, { prefix }), tree: createKeys(prefix).tree("ses_root") };
}

const decided = (digest: string) =>
  create(DecisionRecordSchema, { kind: DecisionKind.ALLOWED, sessionId: "ses_root", digest });

/** Records a call that is accepted, started and ended in one step. */
async function recordOnce(store: OpenedStore, callId: string, sessionId = "ses_root"): Promise<void> {
  const ref = callRef(callId, sessionId);
  await openCall(store, ref, { start: running(ref), end: completed(ref), decisions: [decided(callId)] });
}

/** Names the keys of a store that hold records. */
const recordsIn = async (prefix: string) =>
  (await redis.keys(`${prefix}:*`)).filter(
    (name) => !/:operation:|\}:(store|live|clock|counter|probe|policy)$/.test(name),
  );

describe("upkeep", () => {
  test("removes the TTLs that an earlier version set, at the first sweep of a process", async () => {
    const { store, prefix } = await openOwn();
    await addTree(store);
    await recordOnce(store, "call_1");
    await openAskedCall(store, callRef("call_2"), ["per_1"]);
    await saveGrant(store, grant("grt_1"));
    await store.outputs.append("ses_root", "out_1", new Uint8Array(100_000));
    // What has ended may keep its TTL; listings never had one.
    const others = /:call:ses_root:call_1$|\{per_|\{\d+\}/;
    const names = (await recordsIn(prefix)).filter((name) => !others.test(name));
    for (const name of names) await redis.pexpire(name, day);
    await store.calls.sweep();
    for (const name of names) expect(await redis.pttl(name), name).toBe(-1);
    await store.close();
  });

  test("lists the chains for a receiver of the audit that did not exist when they were written", async () => {
    const { store, prefix } = await openOwn();
    await addTree(store);
    await recordOnce(store, "call_1");
    await store.permissions.recordDecisions("ses_none", [decided("none")]);
    const later = await openIn(server.url, { prefix, receivers: ["siem"] });
    const pending = async () =>
      (await later.exports.pendingExports("siem", { skip: 0, limit: 10 })).map(({ root }) => root);
    expect(await pending()).toEqual([]);
    await later.calls.sweep();
    expect((await pending()).toSorted()).toEqual(["ses_none", "ses_root"]);
    await Promise.all([store.close(), later.close()]);
  });

  test("loses no decision that is recorded while a sweep removes the empty chain of its tree", async () => {
    const beside: (() => Promise<void>)[] = [];
    const through = (link: Link): Link => ({
      ...link,
      async command(name, ...args) {
        const reply = await link.command(name, ...args);
        if (name === "xlen") await beside.pop()?.();
        return reply;
      },
    });
    const store = await openIn(server.url, { through });
    await store.permissions.recordDecisions("ses_none", [decided("old")]);
    store.advance(91 * day);
    beside.push(() => store.permissions.recordDecisions("ses_none", [decided("new")]));
    await store.calls.sweep();
    expect(beside).toEqual([]);
    const entries = await store.permissions.listDecisions({ root: "ses_none", afterSeq: 0, limit: 10 });
    expect(entries.map(({ seq, previous, record }) => [seq, previous, record?.digest])).toEqual([[1n, "", "new"]]);
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual(["ses_none"]);
    await store.close();
  });

  test("removes every key of what is past its retention, and counts that in the log", async () => {
    const prefix = randomUUID();
    const logged: string[] = [];
    const note = (message: string) => void logged.push(message);
    let time = Date.now();
    const clock = () => time;
    const calls = await openRedisStore({ url: server.url, prefix, log: { ...quiet, info: note }, clock });
    const store = {
      ...calls,
      advance() {},
      reopen: () => Promise.reject(new Error("not used")),
      close: calls.calls.close,
    };
    await addTree(store);
    await recordOnce(store, "call_1");
    await recordOnce(store, "call_2", "ses_child");
    await openAskedCall(store, callRef("call_3"), ["per_1"]);
    const guard = { version: (await store.calls.getCall("ses_root", "call_3"))?.version ?? 0 };
    await store.calls.finishCall({ ref: callRef("call_3"), guard, part: completed(callRef("call_3")) });
    await saveGrant(store, grant("grt_1"));
    await saveGrant(store, grant("grt_2", { scope: GrantScope.PROJECT, expires: time + day }));
    const waiting = await store.calls.getCall("ses_root", "call_of_grt_1");
    for (const id of ["call_of_grt_1", "call_of_grt_2"])
      await store.calls.finishCall({
        ref: callRef(id),
        guard: { version: waiting?.version ?? 0 },
        part: failed(callRef(id)),
      });
    await store.calls.sweep();
    // Two decisions of today.
    expect(logged).toEqual([
      expect.stringMatching(
        /^the audit takes about 0\.0 MiB .* at 0\.0 MiB a day it grows to 0\.0 MiB in the 90 days for which/,
      ),
    ]);
    for (const days of [2, 8, 31, 32, 95, 96]) {
      time += days * day;
      for (const { root, id } of (await store.calls.sweep()).outputs) await store.outputs.remove(root, id);
    }
    expect(logged[1]).toBe("removed after their retention time: 2 logs");
    expect(logged.join("\n")).toMatch(/5 results/);
    expect(logged.join("\n")).toMatch(/1 trees/);
    expect(await recordsIn(prefix)).toEqual([]);
    await store.close();
  });
});

test("lists no session that is refused since its parent is closed, and finds one that was created before", async () => {
  const { store, prefix } = await openOwn();
  await addTree(store);
  const under = (parentSessionId: string) => ({ parentSessionId, rootSessionId: "ses_root" });
  await store.calls.closeSession("ses_child");
  const records = await recordsIn(prefix);
  const count = () => redis.zcard(createKeys(prefix).owned("alice"));
  const before = await count();
  for (let index = 0; index < 100; index++)
    expect(await refusal(addSession(store, `ses_${index}`, under("ses_child")))).toMatchObject({
      reason: ErrorReason.SESSION_CLOSED,
    });
  expect(await count()).toBe(before);
  expect((await recordsIn(prefix)).sort()).toEqual(records.sort());
  await addSession(store, "ses_grandchild", under("ses_child"));
  await store.close();
});

test("answers a step again only for the same operation, not for one whose id begins alike", async () => {
  const ids = ["op-1", "op-12", "op-1"];
  const through = (link: Link): Link => ({
    ...link,
    run: (name, keys, values, bytes) =>
      link.run(name, keys, values && "op" in values ? { ...values, op: ids.shift() } : values, bytes),
  });
  const store = await openIn(server.url, { through });
  await addTree(store);
  const ref = callRef("call_1");
  const fence = fenceOf(await openCall(store, ref));
  await store.calls.startCall({ fence, version: 1, part: running(ref) });
  const part = await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) });
  expect(part).toMatchObject({ revision: 3n });
  await store.close();
});

test("continues a chain of decisions to which a replica of an older version has appended", async () => {
  const { store, tree } = await openOwn();
  await addTree(store);
  await recordOnce(store, "call_1");
  const entries = () => store.permissions.listDecisions({ root: "ses_root", afterSeq: 0, limit: 10 });
  const [first] = await entries();
  // Older versions do not write the head of the chain.
  const hash = linkHash(first?.hash ?? "", 2, 1, "digest");
  await redis.xadd(tree.audit, "2-0", "t", 1, "p", first?.hash ?? "", "h", hash, "d", "");
  await recordOnce(store, "call_2");
  await recordOnce(store, "call_3");
  const chain = (await entries()).map(({ seq, previous }) => [Number(seq), previous]);
  const hashes = (await entries()).map((entry) => entry.hash);
  expect(hashes[1]).toBe(hash);
  expect(chain).toEqual([1, 2, 3, 4].map((seq, index) => [seq, ["", ...hashes][index]]));
  await store.close();
});
