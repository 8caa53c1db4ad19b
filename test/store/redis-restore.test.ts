import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import { expect, onTestFinished, test, vi } from "vitest";
import { GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { addSession, callRef, grant, openAskedCall, openCall, recordOf, saveGrant } from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { quiet } from "./redis-store.ts";

/** A store on its own Redis, with the memory of a replica. */
async function openOwn() {
  const server = await startRedis();
  const folder = await mkdtemp(join(tmpdir(), "toolgate-counter-"));
  const redis = new Redis(server.nodes[0] ?? {});
  redis.on("error", () => undefined);
  const counterFile = join(folder, "redis-counter.json");
  const open = async () => {
    const opened = await openRedisStore({ url: server.url, log: quiet, counterFile });
    onTestFinished(opened.calls.close);
    return { ...opened, advance() {}, reopen: open, close: opened.calls.close };
  };
  onTestFinished(async () => {
    redis.disconnect();
    await server.stop();
    await rm(folder, { recursive: true });
  });
  return { server, redis, counterFile, open };
}

const known = async (file: string): Promise<number> =>
  Number(JSON.parse(await readFile(file, "utf8").catch(() => '{"count":0}')).count);

test("a Redis that was set back while a replica ran, or later, is another store: calls may have run, grants are suspended", async () => {
  const { server, redis, counterFile, open } = await openOwn();
  const { counter } = createKeys("toolgate");
  const store = await open();
  await addSession(store);
  await openCall(store, callRef());
  await saveGrant(store, grant("grt_wide", { scope: GrantScope.PROJECT, workspace: "default" }));
  await saveGrant(store, grant("grt_own"));
  await redis.save();
  const first = store.calls.storeId;
  const tree = { root: "ses_root", workspace: "default", agent: "build" };
  expect((await store.permissions.grantsFor(tree)).grants).toHaveLength(2);
  const saved = Number(await redis.hget(counter, "count"));
  await vi.waitUntil(async () => (await known(counterFile)) > saved, { timeout: 60_000 });

  await server.restart();
  await vi.waitUntil(() => store.calls.ready(), { timeout: 30_000 });
  const second = store.calls.storeId;
  expect(second).not.toBe(first);
  expect((await recordOf(store, callRef())).mayHaveRun).toBe(true);
  expect((await store.permissions.grantsFor(tree)).grants).toEqual([]);
  expect(await store.permissions.adoptGrant("ses_root", "grt_own")).toBe(false);
  const grants = await store.permissions.listGrants({ includeDead: false, limit: 10 });
  expect(grants.map(({ suspended }) => suspended > 0)).toEqual([true, true]);
  for (const { id } of grants) expect(await store.permissions.confirmGrant(id)).toMatchObject({ id, suspended: 0 });
  expect((await store.permissions.grantsFor(tree)).grants).toHaveLength(2);

  // The dump again, while no replica runs.
  await store.close();
  await writeFile(counterFile, JSON.stringify({ storeId: first, count: saved + 1 }));
  await server.restart();
  const next = await open();
  expect([first, second]).not.toContain(next.calls.storeId);
  expect((await next.permissions.grantsFor(tree)).grants).toEqual([]);
});

test("a Redis that has lost its last writes lists a tree again with its next request, and continues no output behind a gap", async () => {
  const { server, redis, open } = await openOwn();
  const store = await open();
  const { storeId } = store.calls;
  const append = (text: string) => store.outputs.append("ses_root", "out_1", Buffer.from(text));
  await addSession(store);
  await append("one ");
  const { counter } = createKeys("toolgate");
  await vi.waitUntil(async () => (await redis.hget(counter, "count")) === "1", { timeout: 30_000 });
  await redis.save();
  await openAskedCall(store, callRef("lost"), ["per_lost"]);
  await append("two ");

  await server.restart();
  await vi.waitUntil(() => store.calls.ready(), { timeout: 30_000 });
  expect(store.calls.storeId).toBe(storeId);
  await openAskedCall(store, callRef("next"), ["per_next"]);
  expect((await store.permissions.openRequests({ limit: 10 })).map(({ id }) => id)).toEqual(["per_next"]);
  await expect(append("three")).rejects.toThrow("output out_1 is cut off");
  expect(await store.outputs.read("ses_root", "out_1", 0, 100)).toMatchObject({ total: 4 });
});

test("the loss of raises of the last seconds is no restore, nor is an emptied Redis or another store", async () => {
  const { server, redis, counterFile, open } = await openOwn();
  const store = await open();
  const { storeId } = store.calls;
  const { counter } = createKeys("toolgate");
  await vi.waitUntil(async () => (await redis.hget(counter, "count")) === "1", { timeout: 30_000 });
  await redis.save();
  await vi.waitUntil(async () => (await known(counterFile)) === 1, { timeout: 30_000 });
  // The second raise is lost, which was not found again later than a server may lose it.
  await server.restart();
  await vi.waitUntil(() => store.calls.ready(), { timeout: 30_000 });
  expect(store.calls.storeId).toBe(storeId);
  await store.close();
  await writeFile(counterFile, JSON.stringify({ storeId: "sto_other", count: 1_000 }));
  const next = await open();
  expect(next.calls.storeId).toBe(storeId);
  expect(await redis.hget(counter, "restored")).toBeNull();
});
