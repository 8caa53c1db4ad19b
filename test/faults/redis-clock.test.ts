import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../../src/core/logger.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import {
  addSession,
  answer,
  askMs,
  callRef,
  completed,
  day,
  leaseMs,
  logOf,
  type OpenedStore,
  openAskedCall,
  openEscalating,
  recordOf,
  startCall,
} from "../store/fixture.ts";
import { startRedisWithClock } from "../store/redis-server.ts";

const server = await startRedisWithClock();
const redis = new Redis(server.nodes[0] ?? {});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

/** A store of which replicas can be started; Redis' clock is right at first. */
async function newStore() {
  await server.setClock("+0");
  const prefix = randomUUID();
  const logged: string[] = [];
  const note = (message: string) => void logged.push(message);
  const log: Logger = { debug: note, info: note, warn: note, error: note };
  const running = new Set<OpenedStore>();
  onTestFinished(() => stopAll());
  const start = async (): Promise<OpenedStore> => {
    const store = await openRedisStore({ url: server.url, prefix, log });
    const close = () => store.calls.close();
    const opened = { ...store, advance() {}, reopen: () => Promise.reject(new Error("not used")), close };
    running.add(opened);
    return opened;
  };
  const stopAll = async () => {
    await Promise.all([...running].map((store) => store.close()));
    running.clear();
  };
  return { start, stopAll, logged, tree: createKeys(prefix).tree("ses_root"), clockKey: createKeys(prefix).clock };
}

/** Records a call that ended, and one that waits for an approver. */
async function use(store: OpenedStore): Promise<void> {
  await addSession(store);
  const ref = callRef("ended");
  await store.calls.finishCall({ ref, guard: { fence: await startCall(store, ref) }, part: completed(ref) });
  await openAskedCall(store, callRef("asks"), ["per_1"]);
}

/** Traces of its use in a store; all of them, if nothing expired or was removed. */
async function contents(store: OpenedStore) {
  await store.calls.sweep();
  const { state } = (await recordOf(store, callRef("ended"))).part;
  const expired = await store.permissions.dueAsks(10);
  return { events: (await logOf(store)).length, ended: state.case, expired: expired.length };
}
const whole = { events: 5, ended: "completed", expired: 0 };

test("a jump of Redis' clock by 40 days removes nothing, expires nothing and ends no lease, at any replica", async () => {
  const { start, logged } = await newStore();
  const [one, other] = [await start(), await start()];
  await use(one);
  const fence = await startCall(one, callRef("runs"));
  const before = Date.now();
  await server.setClock("+40d");
  expect(await other.permissions.settle(await answer(other, callRef("asks"), "per_1"))).toMatchObject({
    result: "won",
  });
  expect(await other.calls.claimCall(callRef("runs"), "replica_2", leaseMs)).toBeUndefined();
  const part = completed(callRef("runs"));
  expect(await one.calls.finishCall({ ref: callRef("runs"), guard: { fence }, part })).toMatchObject({
    callId: "runs",
  });
  for (const store of [one, other]) {
    expect(await contents(store)).toMatchObject({ ended: "completed", expired: 0 });
    expect(store.calls.now() - before).toBeLessThan(60_000);
  }
  const events = await logOf(one);
  expect(events.every(({ time }) => Math.abs(time - before) < 60_000)).toBe(true);
  expect(logged.filter((line) => line.includes("jumped"))).toEqual([
    expect.stringMatching(/^the clock of Redis at .* jumped by 40\.0 days: .*nothing is removed because of it/),
  ]);
  await server.setClock("+0");
  expect(await contents(other)).toMatchObject({ ended: "completed", expired: 0 });
  expect(logged.at(-1)).toMatch(/jumped by -40\.0 days and is right again$/);
});

test("an answer that comes after a jump wins; control: without the time of the store it is too late", async () => {
  const { start, clockKey } = await newStore();
  const store = await start();
  await use(store);
  const settlement = await answer(store, callRef("asks"), "per_1", { outcome: PermissionOutcome.REJECT });
  await server.setClock("+1d");
  expect(await store.permissions.settle(settlement)).toMatchObject({ result: "won" });
  await openAskedCall(store, callRef("asks_too"), ["per_2"]);
  const late = await answer(store, callRef("asks_too"), "per_2", { outcome: PermissionOutcome.REJECT });
  await server.setClock("+0");
  await vi.waitUntil(async () => Math.abs((await store.calls.ready()) ? store.calls.now() - Date.now() : 1e9) < 60_000);
  await server.setClock("+1d");
  // What versions before this one did: they knew no time but Redis' clock.
  await redis.del(clockKey);
  const old = await openRedisStore({
    url: server.url,
    prefix: clockKey.slice(0, clockKey.indexOf(":{")),
    log: quietLog,
  });
  onTestFinished(() => old.calls.close());
  expect(await old.permissions.settle(late)).toEqual({ result: "lost" });
});

const quietLog: Logger = { debug() {}, info() {}, warn() {}, error() {} };

test("a start with a clock that is 40 days ahead holds the time; the second such start adopts it, and asks keep their time", async () => {
  const { start, stopAll, logged, tree } = await newStore();
  const store = await start();
  await use(store);
  await openEscalating(store, callRef("steps"), "per_steps");
  const before = await contents(store);
  await stopAll();
  await server.setClock("+40d");
  const first = await start();
  expect(await contents(first)).toEqual(before);
  expect(Math.abs(first.calls.now() - Date.now())).toBeLessThan(60_000);
  await stopAll();
  const second = await start();
  expect(logged.some((line) => line.startsWith("the clock of Redis is adopted: it is 40.0 days"))).toBe(true);
  expect(second.calls.now() - Date.now()).toBeGreaterThan(39 * day);
  expect(await second.permissions.dueAsks(10)).toEqual([]);
  const { request } = (await second.permissions.findAsk("per_1")) ?? {};
  expect((request?.expires ?? 0) - second.calls.now()).toBeGreaterThan(askMs - 60_000);
  expect(Number(await redis.zscore(tree.deadlines, "per_1"))).toBe(request?.expires);
  const escalating = (await second.permissions.findAsk("per_steps"))?.request.escalations ?? [];
  expect((escalating[0]?.at ?? 0) - second.calls.now()).toBeGreaterThan(0);
  expect(Number(await redis.zscore(tree.deadlines, "per_steps escalates"))).toBe(escalating[0]?.at);
  await second.calls.sweep();
  expect((await second.calls.getCall("ses_root", "ended"))?.part.state.case).toBeUndefined();
  expect(logged.at(-1)).toMatch(/^removed after their retention time: 1 results, 1 tombstones/);
}, 30_000);

test("a wrong clock during one start changes nothing", async () => {
  const { start, stopAll } = await newStore();
  await use(await start());
  for (const offset of ["+40d", "+0", "-40d", "+0"]) {
    await stopAll();
    await server.setClock(offset);
    expect(await contents(await start()), offset).toEqual(whole);
  }
});

test("a small jump is caught up with gradually", async () => {
  const { start, clockKey } = await newStore();
  const store = await start();
  await use(store);
  await server.setClock("+10m");
  await addSession(store, "ses_other");
  const behind = async () =>
    Number(Object.entries(await redis.hgetall(clockKey)).find(([name]) => name.startsWith("behind"))?.[1]);
  expect(await behind()).toBeGreaterThan(590_000);
  const at = await behind();
  await vi.waitUntil(async () => (await store.calls.ready()) && (await behind()) < at);
  expect(at - (await behind())).toBeLessThan(5_000);
});
