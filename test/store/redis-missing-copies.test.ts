import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import type { Logger } from "../../src/core/logger.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { addSession } from "./fixture.ts";
import { type CopiedServers, startSentinelWithCopies } from "./redis-failover.ts";
import { quiet } from "./redis-store.ts";

let servers: CopiedServers;
beforeAll(async () => {
  servers = await startSentinelWithCopies(1);
});
afterAll(() => servers.stop());

const open = (settings: { log?: Logger; copies?: { copies: number } } = {}) =>
  openRedisStore({ url: servers.url, log: quiet, ...settings });
const newId = () => `ses_${crypto.randomUUID()}`;

/** Freezes the copy; returns the function that continues it. */
function freezeCopy(): () => void {
  const [, copy = 0] = servers.ports;
  servers.signal(copy, "SIGSTOP");
  const thaw = () => servers.signal(copy, "SIGCONT");
  onTestFinished(thaw);
  return thaw;
}

/** Disconnects the frozen copy, as its master does after a while. */
async function dropCopy(): Promise<void> {
  const master = new Redis(servers.ports[0] ?? 0);
  await master.client("KILL", "TYPE", "REPLICA");
  master.disconnect();
}

test("bytes of an output are not acknowledged before the copy has them", async () => {
  const store = await open();
  await store.outputs.append("ses_a", "out_a", Buffer.from("first"));
  const thaw = freezeCopy();
  let isAcknowledged = false;
  const appended = store.outputs.append("ses_a", "out_a", Buffer.from("second")).then(() => {
    isAcknowledged = true;
  });
  await expect(addSession(store, newId())).rejects.toThrow("0 of 1 required copies");
  expect(isAcknowledged).toBe(false);
  thaw();
  await appended;
  await store.calls.close();
});

test("a missing copy still counts, also for a replica that starts meanwhile; only the setting lowers the number", async () => {
  const warned: string[] = [];
  const log: Logger = { ...quiet, warn: (message) => void warned.push(message) };
  const before = await open({ log });
  expect(before.calls.safety()).toMatchObject({ copies: 1, expected: 1, required: 1 });
  const thaw = freezeCopy();
  await dropCopy();
  await vi.waitUntil(() => before.calls.safety().copies === 0, { timeout: 60_000 });
  const gap =
    "0 of 1 copies of Redis are connected, and requests are refused, since a failover could lose what they write: start the others; if they are gone for good, set store_copies = 0 and restart every replica";
  expect(before.calls.safety()).toMatchObject({ expected: 1, required: 1 });
  expect(before.calls.safety().warnings).toContain(gap);
  expect(warned).toContain(gap);
  expect(await before.calls.ready()).toBe(false);
  await before.calls.close();

  const during = await open();
  expect(during.calls.safety()).toMatchObject({ copies: 0, expected: 1, required: 1 });
  await expect(addSession(during, newId())).rejects.toThrow(
    "the store is not available (0 of 1 required copies of Redis have the write, and a failover could lose it: bring the other copies back, or set store_copies if they are gone for good): try again with the same ids",
  );
  await during.calls.close();

  const lowered = await open({ copies: { copies: 0 } });
  expect(lowered.calls.safety()).toMatchObject({ copies: 0, expected: 0, required: 0 });
  await addSession(lowered, newId());
  await lowered.calls.close();
  const after = await open();
  expect(after.calls.safety()).toMatchObject({ copies: 0, expected: 0, required: 0 });
  thaw();
  await vi.waitUntil(() => after.calls.safety().required === 1, { timeout: 60_000 });
  await after.calls.close();
});
