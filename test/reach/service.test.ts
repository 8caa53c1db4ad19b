import { randomBytes } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Webhook } from "standardwebhooks";
import { expect, onTestFinished, test } from "vitest";
import { ChannelService, NoticeState } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { clientOf, connect } from "../e2e/clients.ts";
import { startService, unconfined } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { startProvider } from "./provider.ts";

const metricsOf = async ({ url }: { url: string }) =>
  (await fetch(`${url}/metrics`, { headers: { authorization: "Bearer watcher-token-for-tests" } })).text();

test.each([
  ["SQLite, also by the next process", "sqlite"],
  ["Redis, also by another replica", "redis"],
] as const)(
  "a request that waits is announced by a signed webhook on %s after a kill -9, and so is its answer",
  async (_, store) => {
    const redis = store === "redis" ? await startRedis() : undefined;
    if (redis) onTestFinished(redis.stop);
    // The first attempt fails, so that the second one is made after the kill.
    const provider = await startProvider([[503], [204]]);
    const directory = await mkdtemp(join(tmpdir(), "toolgate-reach-"));
    onTestFinished(() => rm(directory, { recursive: true }));
    const secret = `whsec_${randomBytes(32).toString("base64")}`;
    await writeFile(join(directory, "key"), `${secret}\n`);
    const settings =
      `public_url = "https://gate.example"\n${redis ? `store = "${redis.url}"\n` : ""}` +
      `[channel.ops]\nkind = "webhook"\nurl = "${provider.url}"\nsecret_file = "${join(directory, "key")}"\n` +
      `[channel.gone]\nkind = "ntfy"\nurl = "http://127.0.0.1:1/"\nto = "t"\n` +
      `[[notify]]\npermission = "bash"\nchannels = ["ops"]\n${unconfined}`;
    const first = await startService({ settings });
    const agent = connect(first, "caller");
    const call = { sessionId: await agent.newSession(), callId: "c1", tool: "bash", input: { command: "echo sent" } };
    await agent.tools.callTool({ ...call, waitMs: 0 });
    await expect.poll(() => metricsOf(first), { timeout: 20_000 }).toContain('{channel="ops",outcome="retried"} 1');
    await first.kill();
    const service = redis ? await startService({ settings }) : first;
    if (!redis) await first.start();
    await expect.poll(() => provider.received.length, { timeout: 60_000 }).toBe(2);
    const eventOf = (index: number) => {
      const { headers, body } = provider.received[index] ?? { headers: {}, body: "" };
      return new Webhook(secret).verify(body, headers as Record<string, string>) as {
        type: string;
        data: { permission_id: string };
      };
    };
    const { type, data } = eventOf(1);
    expect(eventOf(0)).toEqual(eventOf(1));
    expect(provider.received[0]?.headers["webhook-id"]).toBe(provider.received[1]?.headers["webhook-id"]);
    expect(type).toBe("permission.requested");
    expect(data).toMatchObject({ permission: "bash", url: `https://gate.example/r/${data.permission_id}` });
    const { permissions } = connect(service, "approver");
    const { permission } = await permissions.getPermission({ permissionId: data.permission_id });
    const { id: permissionId = "", sessionId = "" } = permission ?? {};
    await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    await expect.poll(() => provider.received.length, { timeout: 20_000 }).toBe(3);
    expect(eventOf(2)).toMatchObject({ type: "permission.settled", data: { outcome: "reject", by: "approver" } });
    await expect.poll(() => metricsOf(service), { timeout: 20_000 }).toContain("toolgate_waiting_notices 0");
    const channels = clientOf(ChannelService, service.url, "approver-token-for-tests");
    const listed = (await channels.listChannels({})).channels.map(({ name, kind, waiting }) => [name, kind, waiting]);
    expect(listed).toEqual([
      ["gone", "ntfy", 0],
      ["ops", "webhook", 0],
    ]);
    const { notices } = await channels.listNotices({ channel: "ops" });
    expect(notices).toMatchObject([
      { permissionId, channel: "ops", state: NoticeState.CLOSED, why: "", due: 0, permission: "bash" },
    ]);
    await expect(channels.testChannel({ name: "ops" })).rejects.toThrow(/ROLE_MISSING|may not call/);
    const admin = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "admin-token-for-tests" };
    expect(await toolgate(["channel", "test", "ops"], admin)).toMatchObject({
      ...{ code: 0, stdout: "accepted  ops: it answered 204\n" },
    });
    expect(eventOf(3)).toMatchObject({ type: "channel.test", data: { url: "https://gate.example" } });
    const failed = await toolgate(["channel", "test", "gone"], admin);
    expect(failed).toMatchObject({ code: 1, stdout: "" });
    expect(failed.stderr).toMatch(/did not accept the notice: ECONNREFUSED\n +next: check that it runs/);
    const unknown = await toolgate(["channel", "test", "none"], admin);
    expect([unknown.code, unknown.stderr]).toEqual([
      expect.any(Number),
      expect.stringMatching(/there is no channel "none".*\n +next: see them with `toolgate channel`/),
    ]);
    const shown = await toolgate(["channel"], { ...admin, TOOLGATE_TOKEN: "approver-token-for-tests" });
    expect(shown.stdout).toMatch(/gone {2}ntfy {2}failing .*\n.*ECONNREFUSED\nops {2}webhook {2}working/);
    for (const { data: folder } of [first, service])
      expect(await readFile(join(folder, "log/toolgate.log"), "utf8")).not.toContain(secret);
  },
);
