import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { createKeys } from "../../src/store/redis/keys.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { addSession, answer, callRef, openWaitingCall } from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
const redis = new Redis(server.nodes[0] ?? {});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

const open = (prefix: string) => openRedisStore({ url: server.url, prefix, log: quiet });

test("a store of a later format is refused at the start and by replicas that run, and the versions that may are named", async () => {
  const prefix = randomUUID();
  const running = await open(prefix);
  onTestFinished(running.calls.close);
  expect(running.calls.format).toBe(2);
  await redis.hset(createKeys(prefix).format, { format: 3, version: "9.8.7" });
  await expect(open(prefix)).rejects.toThrow(
    /^the Redis at .* has format 3, written by Toolgate 9\.8\.7; this one \(.*\) knows up to format 2: start 9\.8\.7 or later/,
  );
  await redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  await vi.waitUntil(async () => !(await running.calls.ready()), { timeout: 10_000 });
});

test("a store that replicas of an earlier format use is refused, and taken once they have ended", async () => {
  const prefix = randomUUID();
  const { format } = createKeys(prefix);
  // As replicas announced themselves before there was a format.
  const announce = () => redis.set(format, "digest", "PX", 2_500);
  await announce();
  const announcing = setInterval(announce, 600);
  await expect(open(prefix)).rejects.toThrow(
    /^the Redis at .* is in use by replicas of an earlier Toolgate \(format 1\), and this one \(.*\) writes format 2: stop all of them/,
  );
  clearInterval(announcing);
  const next = await open(prefix);
  onTestFinished(next.calls.close);
  expect(await redis.hget(format, "format")).toBe("2");
});

test("a call that was settled and left with the lease of its wait is found by its settlement", async () => {
  const store = await openIn(server.url, { prefix: "left" });
  await addSession(store);
  const ref = callRef();
  await openWaitingCall(store, ref, ["per_1"]);
  expect(await store.permissions.settle(await answer(store, ref, "per_1"))).toMatchObject({ result: "won" });
  // As versions before left it: the wait ended with the answer, its lease only with the deadline.
  const { call, leases } = createKeys("left").tree("ses_root");
  const late = store.calls.now() + 900_000;
  await redis.hset(call("ses_root:call_1"), "lease", late);
  await redis.zadd(leases, late, "ses_root:call_1");
  const next = await store.reopen();
  onTestFinished(next.close);
  expect(await next.calls.orphans()).toMatchObject([{ ref, started: false }]);
});
