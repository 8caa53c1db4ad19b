import { getCACertificates, setDefaultCACertificates } from "node:tls";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { type Certificates, makeCertificates } from "../edge/certificates.ts";
import { addSession, callRef, logOf, openCall } from "./fixture.ts";
import { type RedisServers, startCluster, startRedis, startRedisOnPort, startSentinel } from "./redis-server.ts";
import { quiet } from "./redis-store.ts";

const trusted = getCACertificates();
let made: Certificates;
beforeAll(async () => {
  made = await makeCertificates();
});
afterAll(() => made.remove());

const inClear: Record<string, () => Promise<RedisServers>> = {
  "a unix socket": () => startRedis(),
  "a port and a password": () => startRedisOnPort("secret"),
  sentinels: () => startSentinel(),
  "a cluster": () => startCluster(),
};
const inTls: Record<string, () => Promise<RedisServers>> = {
  "a port and a password": () => startRedisOnPort("secret", made),
  sentinels: () => startSentinel(made),
  "a cluster": () => startCluster(made),
};

test.each(Object.entries(inClear))("connects by the URL of %s", async (_name, start) => {
  const { url } = await started(start);
  await serves(url);
});

test.each(Object.entries(inTls))("connects by the URL of %s over TLS", async (_name, start) => {
  const { url } = await started(start);
  expect(url).toMatch(/^rediss/);
  setDefaultCACertificates([...trusted, made.ca.cert]);
  onTestFinished(() => setDefaultCACertificates(trusted));
  await serves(url);
});

test("refuses a Redis with an untrusted certificate, required TLS or another password, and names the last error", async () => {
  const { url } = await started(() => startRedisOnPort("secret", made));
  const open = { url: (await started(() => startRedisOnPort("secret"))).url };
  const refused = (url: string) =>
    openRedisStore({ url, log: quiet }).then(
      () => "",
      (error: Error) => error.message,
    );
  const reasons = await Promise.all(
    [url, url.replace("rediss", "redis"), open.url.replace("secret", "other")].map(refused),
  );
  expect(reasons).toEqual([
    expect.stringContaining("self-signed certificate in certificate chain"),
    expect.stringMatching(/ECONNRESET|closed/),
    expect.stringContaining("WRONGPASS"),
  ]);
});

async function started(start: () => Promise<RedisServers>): Promise<RedisServers> {
  const servers = await start();
  onTestFinished(servers.stop);
  return servers;
}

/** Waits for the connection for news as well, which is separate. */
async function serves(url: string): Promise<void> {
  const [one, other] = [await openRedisStore({ url, log: quiet }), await openRedisStore({ url, log: quiet })];
  await addSession(one);
  const heard = new Promise((resolve) => other.calls.onNews("ses_root", (_, seq) => resolve(seq)));
  await openCall(one, callRef());
  expect(await heard).toBe(1);
  expect(await logOf(other)).toHaveLength(1);
  await Promise.all([one.calls.close(), other.calls.close()]);
}
