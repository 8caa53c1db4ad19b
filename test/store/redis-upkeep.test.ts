import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { Redis } from "ioredis";
import { afterAll, describe, expect, test } from "vitest";
import { DecisionKind, DecisionRecordSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { linkHash } from "../../src/store/audit.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import type { Link } from "../../src/store/redis/link.ts";
import { auditRetentionMs, recordRetentionMs } from "../../src/store/retention.ts";
import { addTree, callRef, completed, day, fenceOf, type OpenedStore, openCall, running } from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn } from "./redis-store.ts";

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

/** Lets the TTLs of all keys run down by a time, which passes for the store as well. */
async function pass(store: OpenedStore, prefix: string, ms: number): Promise<void> {
  store.advance(ms);
  for (const key of await redis.keys(`${prefix}:*`)) {
    const ttl = await redis.pttl(key);
    if (ttl >= 0) await redis.pexpire(key, ttl - ms);
  }
}

describe("TTLs", () => {
  test("are set by a step that records a call once, on every key of its tree", async () => {
    const { store, prefix } = await openOwn();
    await addTree(store);
    await recordOnce(store, "call_1");
    const names = (await redis.keys(`${prefix}:{ses_root}:*`)).filter((name) => !name.includes(":operation:"));
    expect(names).toEqual(
      expect.arrayContaining([expect.stringMatching(/:calls:ses_root$/), expect.stringMatching(/:ended$/)]),
    );
    for (const name of names) expect(await redis.pttl(name), name).toBeGreaterThan(recordRetentionMs);
    await store.close();
  });

  test("outlast the retention while the tree is used and swept once a day", async () => {
    const { store, prefix, tree } = await openOwn();
    await addTree(store);
    await recordOnce(store, "call_0");
    for (let days = 1; days <= 35; days++) {
      await pass(store, prefix, day);
      await recordOnce(store, `call_${days}`);
      await store.calls.sweep();
      const kept = [
        tree.tree,
        tree.sessions,
        tree.session("ses_root"),
        tree.log("ses_root"),
        tree.calls("ses_root"),
        tree.ended,
      ];
      for (const key of kept)
        expect(await redis.pttl(key), `${key} on day ${days}`).toBeGreaterThan(recordRetentionMs - day);
      expect(await redis.pttl(tree.audit), `audit on day ${days}`).toBeGreaterThanOrEqual(auditRetentionMs - day / 24);
    }
    await store.close();
  });

  test("are set again on a set that was emptied", async () => {
    const { store, prefix, tree } = await openOwn();
    await addTree(store);
    await recordOnce(store, "call_1");
    await recordOnce(store, "call_2", "ses_child");
    for (const ms of [recordRetentionMs - day, day]) {
      await pass(store, prefix, ms);
      await recordOnce(store, `call_child_${ms}`, "ses_child");
      await store.calls.sweep();
    }
    expect(await redis.exists(tree.calls("ses_root"))).toBe(0);
    await recordOnce(store, "call_3");
    expect(await redis.pttl(tree.calls("ses_root"))).toBeGreaterThan(recordRetentionMs);
    await store.close();
  });
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
