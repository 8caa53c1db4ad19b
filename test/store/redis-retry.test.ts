import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { whenReady } from "../../src/store/redis/client.ts";
import { createConnection } from "../../src/store/redis/connection.ts";
import { verifyContents } from "../../src/store/redis/contents.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import { attemptCommand } from "../../src/store/redis/link.ts";
import { parseRedisUrl } from "../../src/store/redis/url.ts";
import { type RedisServers, startRedis } from "./redis-server.ts";
import { quiet } from "./redis-store.ts";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** Sends a command whose first attempt fails after `meanwhile`, and returns the number of attempts. */
async function attemptsOver(meanwhile: (flush: () => Promise<void>) => Promise<void>) {
  const address = parseRedisUrl(redis.url);
  const connection = createConnection({ address, keys: createKeys(randomUUID()), log: quiet });
  onTestFinished(() => connection.client.disconnect());
  await whenReady(connection.client, 10_000);
  await verifyContents(connection);
  let attempts = 0;
  const work = async () => {
    attempts += 1;
    if (attempts > 1) return 1;
    await meanwhile(async () => {
      await connection.client.flushall();
      await verifyContents(connection);
    });
    throw new Error("the connection was lost");
  };
  const outcome = attemptCommand(connection, work).catch((error: Error) => error.message);
  return { outcome: await outcome, attempts };
}

test("a command whose answer was lost is sent again to the same contents", async () => {
  expect(await attemptsOver(async () => {})).toEqual({ outcome: 1, attempts: 2 });
});

test("a command is not repeated in a Redis that lost its contents since the first attempt", async () => {
  const { outcome, attempts } = await attemptsOver((flush) => flush());
  expect([outcome, attempts]).toEqual([expect.stringContaining("it lost its contents"), 1]);
});

test("a refusal names what Redis refused, and not the script in which it did", async () => {
  const connection = createConnection({
    address: parseRedisUrl(redis.url),
    keys: createKeys(randomUUID()),
    log: quiet,
  });
  onTestFinished(() => connection.client.disconnect());
  await whenReady(connection.client, 10_000);
  await verifyContents(connection);
  const fact = "MISCONF Redis is configured to save RDB snapshots, but it cannot persist on disk";
  const refused = attemptCommand(
    connection,
    () => Promise.reject(new Error(`${fact} script: 0a1b2c, on @user_script:12.`)),
    0,
  );
  await expect(refused).rejects.toThrow(new RegExp(`\\(${fact}\\)`));
});
