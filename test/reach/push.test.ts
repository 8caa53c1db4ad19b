import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { importJWK, jwtVerify } from "jose";
import { expect, onTestFinished, test } from "vitest";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { clientOf, connect, refusal } from "../e2e/clients.ts";
import { startService, unconfined } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { newBrowser, type Push, signIn, startPushService } from "./push-service.ts";

const channelsOf = ({ url }: { url: string }, token: string) => clientOf(ChannelService, url, token);

/** Verifies the token of a push with the key that browsers subscribed with; returns its claims. */
async function claimsOf({ headers }: Push, pushKey: Uint8Array) {
  const [, token = "", given = ""] = /^vapid t=([\w.-]+), k=([\w-]+)$/.exec(headers.authorization ?? "") ?? [];
  expect(Buffer.from(given, "base64url")).toEqual(Buffer.from(pushKey));
  const [x = "", y = ""] = [pushKey.slice(1, 33), pushKey.slice(33)].map((part) =>
    Buffer.from(part).toString("base64url"),
  );
  return (await jwtVerify(token, await importJWK({ kty: "EC", crv: "P-256", x, y }, "ES256"))).payload;
}

test.each([
  ["SQLite, also by the next process", "sqlite"],
  ["Redis, also by another replica", "redis"],
] as const)("a request and its outcome reach a subscribed browser on %s after a kill -9", async (_, store) => {
  const redis = store === "redis" ? await startRedis() : undefined;
  if (redis) onTestFinished(redis.stop);
  const provider = await startPushService();
  const settings = `${redis ? `store = "${redis.url}"\n` : ""}${provider.settings}${unconfined}`;
  const first = await startService({ settings });
  const [browser, gone, ended] = [newBrowser(), newBrowser(), newBrowser()];
  const { token: ann } = await signIn(first, "Ann");
  const { pushKey } = await channelsOf(first, ann).listChannels({});
  const subscribe = ({ p256dh, auth }: typeof browser, path: string, token = ann) =>
    channelsOf(first, token).subscribe({ endpoint: `${provider.url}${path}`, p256dh, auth, pushKey });

  // A new browser gets a test at once, one that reports itself again does not.
  expect(await subscribe(browser, "/one")).toMatchObject({ failure: "" });
  await subscribe(browser, "/one");
  expect(provider.pushes.map(({ path }) => path)).toEqual(["/one"]);
  provider.statuses.set("/gone", 410);
  expect(await subscribe(gone, "/gone")).toMatchObject({ failure: "" });
  const { token, credential } = await signIn(first, "Ben");
  await subscribe(ended, "/ended", token);
  await clientOf(CredentialService, first.url, ann).revokeCredential({ id: credential?.id ?? "" });
  provider.pushes.length = 0;

  const agent = connect(first, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", tool: "bash", input: { command: "rm -rf build" } };
  await agent.tools.callTool({ ...call, waitMs: 0 });
  await expect.poll(() => provider.pushes.length, { timeout: 20_000 }).toBe(1);
  await first.kill();
  const service = redis ? await startService({ settings }) : first;
  if (!redis) await first.start();

  const { permissions } = connect(service, "approver");
  const [asked] = (await permissions.listPermissions({ sessionId: call.sessionId })).permissions;
  const { id: permissionId = "", sessionId = "" } = asked ?? {};
  await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
  await expect.poll(() => provider.pushes.length, { timeout: 60_000 }).toBe(2);
  const [opened, settled] = provider.pushes as [Push, Push];
  const read = ({ body }: Push) => JSON.parse(browser.decrypt(body).toString());
  expect(read(opened)).toEqual({
    ...{ id: permissionId, phase: "opened", risky: true },
    ...{ title: "Toolgate: build asks: bash", body: "Risks: deletes" },
  });
  expect(read(settled)).toMatchObject({ id: permissionId, phase: "settled", title: "Toolgate: rejected" });
  expect(read(settled).body).toContain("rejected by ");
  expect([opened, settled].map(({ path, headers }) => [path, headers.urgency])).toEqual([
    ["/one", "high"],
    ["/one", "normal"],
  ]);
  expect(opened.headers.topic).toMatch(/^[\w-]{32}$/);
  expect(settled.headers.topic).toBe(opened.headers.topic);
  expect(Number(opened.headers.ttl)).toBeLessThanOrEqual(900);
  expect(opened.headers["content-encoding"]).toBe("aes128gcm");
  for (const push of [opened, settled])
    expect(await claimsOf(push, pushKey)).toMatchObject({ aud: provider.url, sub: "https://gate.example" });
  expect(Buffer.from((await channelsOf(service, ann).listChannels({})).pushKey)).toEqual(Buffer.from(pushKey));
  const log = await readFile(join(service.data, "log/toolgate.log"), "utf8");
  expect(log).not.toContain(provider.url);
});

test("a subscription that is forged is refused, and nothing is sent", async () => {
  const provider = await startPushService();
  const service = await startService({ settings: `${provider.settings}${unconfined}` });
  const { token: ann } = await signIn(service, "Ann");
  const channels = channelsOf(service, ann);
  const { pushKey } = await channels.listChannels({});
  const { p256dh, auth } = newBrowser();
  const good = { endpoint: `${provider.url}/one`, p256dh, auth, pushKey };
  const { port } = new URL(provider.url);
  const forged: [string, Partial<typeof good>][] = [
    ...[
      `http://localhost:${port}/one`,
      `http://[::1]:${port}/one`,
      `http://127.0.0.1.nip.example:${port}/one`,
      `http://127.0.0.1:${port}@evil.example/one`,
      "http://127.0.0.1/one",
      "http://169.254.169.254/latest",
      "https://evil.example/one",
      "https://fcm.googleapis.com/fcm/send/one",
      "file:///etc/passwd",
      `${service.url}/opencode.tool.v1.PermissionService/RespondToPermission`,
      "",
      "one",
      `${provider.url}/${"x".repeat(3_000)}`,
    ].map((endpoint): [string, Partial<typeof good>] => [endpoint, { endpoint }]),
    ...[Buffer.alloc(0), Buffer.alloc(65), Buffer.alloc(65, 4), p256dh.subarray(0, 64), Buffer.alloc(1_048_576)].map(
      (key): [string, Partial<typeof good>] => [`p256dh of ${key.length} bytes`, { p256dh: key }],
    ),
    ...[0, 15, 17, 1_048_576].map((size): [string, Partial<typeof good>] => [
      `auth of ${size} bytes`,
      { auth: Buffer.alloc(size) },
    ]),
    ["a key of another service", { pushKey: newBrowser().p256dh }],
    ["no key of the service", { pushKey: new Uint8Array() }],
  ];
  for (const [name, fields] of forged) {
    const { reason } = await refusal(channels.subscribe({ ...good, ...fields }));
    expect([name, reason]).toEqual([name, "INVALID_MESSAGE"]);
  }
  for (const who of ["caller", "watcher"])
    expect(await refusal(channelsOf(service, `${who}-token-for-tests`).subscribe(good))).toMatchObject({
      reason: "ROLE_MISSING",
    });
  expect(provider.pushes).toEqual([]);
  await channels.subscribe(good);
  expect(provider.pushes.length).toBe(1);
  // Another credential cannot end it.
  await channelsOf(service, "deputy-token-for-tests").unsubscribe(good);
  await channels.subscribe(good);
  expect(provider.pushes.length).toBe(1);
  await channels.unsubscribe(good);
  await channels.subscribe(good);
  expect(provider.pushes.length).toBe(2);
});
