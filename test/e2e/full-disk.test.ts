import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { Redis } from "ioredis";
import { expect, onTestFinished, test, vi } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startRedis } from "../store/redis-server.ts";
import { mountSmallDisk } from "../tmpfs.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

const unavailable = { code: Code.Unavailable, reason: "STORE_UNAVAILABLE" };

/** A store that a test fills. */
interface Fillable {
  service: Service;
  fill(): Promise<void>;
  empty(): Promise<void>;
}

const stores: Readonly<Record<string, () => Promise<Fillable>>> = {
  async "data directory without space"() {
    const data = await mkdtemp(join(tmpdir(), "toolgate-data-"));
    onTestFinished(() => rm(data, { recursive: true }));
    const disk = mountSmallDisk(data, 48);
    const service = await startService({ flags: ["--data", data] });
    return { service, fill: async () => disk.fill(0), empty: async () => disk.empty() };
  },
  async "Redis that has reached maxmemory"() {
    const server = await startRedis();
    onTestFinished(server.stop);
    const redis = new Redis(server.nodes[0] as { path: string });
    onTestFinished(() => redis.disconnect());
    const service = await startService({ settings: `store = "${server.url}"\n` });
    // So far below the memory in use that no buffer of a connection makes a difference.
    await redis.set("other data", Buffer.alloc(8 * 1024 * 1024));
    const setMaximum = async (maximum: string) => void (await redis.config("SET", "maxmemory", maximum));
    return { service, fill: () => setMaximum("4mb"), empty: () => setMaximum("0") };
  },
};

test.each(Object.entries(stores))(
  "a %s ends no process: open work ends, new calls and sign-ins are unavailable, readiness says so",
  async (_store, open) => {
    const { service, fill, empty } = await open();
    const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
    const sessionId = await agent.newSession();
    const execute = (callId: string, command: string, fields = {}) =>
      read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input: { command }, ...fields }));
    const stateOf = async (callId: string) =>
      (await agent.tools.listToolParts({ sessionId })).parts.find((part) => part.callId === callId)?.state.case;
    const readiness = async () => (await fetch(`${service.url}/readyz`)).status;
    const asked = execute("asked", "echo never");
    const { id: permissionId } = await asked.until("permissionAsked");
    const running = execute("running", "until [ -e done ]; do sleep 0.1; done", { agent: "free" });
    await vi.waitUntil(async () => (await stateOf("running")) === "running", { timeout: 30_000 });
    expect(await readiness()).toBe(200);

    const credentials = clientOf(CredentialService, service.url, "approver-token-for-tests");
    const { code } = await credentials.createCode({});
    await fill();
    await vi.waitUntil(async () => (await readiness()) === 503, { timeout: 30_000 });
    const another = { sessionId, callId: "new", agent: "free", tool: "echo", input: { text: "x" } };
    expect(await refusal(agent.tools.callTool(another))).toMatchObject(unavailable);
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    expect((await asked.end()).state.case).toBe("error");
    await writeFile(join(service.workspace, "done"), "");
    expect((await running.end()).state.case).toBe("completed");
    expect((await fetch(`${service.url}/healthz`)).status).toBe(200);

    // The reserve that a full disk released serves records only until it is full again.
    await fill();
    expect(await refusal(credentials.signIn({ code }))).toMatchObject(unavailable);
    await empty();
    expect((await credentials.signIn({ code })).credential?.roles).toEqual(["approver"]);
    await vi.waitUntil(async () => (await readiness()) === 200, { timeout: 30_000 });
    expect((await agent.tools.callTool(another)).part?.state.case).toBe("completed");
    expect(await service.stop()).toBe(0);
  },
);

test("a full disk of outputs makes the replica not ready until it has space again", async () => {
  const data = await mkdtemp(join(tmpdir(), "toolgate-data-"));
  onTestFinished(() => rm(data, { recursive: true }));
  const disk = mountSmallDisk(join(data, "output"), 8);
  const service = await startService({ flags: ["--data", data] });
  const readiness = async () => (await fetch(`${service.url}/readyz`)).status;
  expect(await readiness()).toBe(200);
  disk.fill(0);
  expect(await readiness()).toBe(503);
  disk.empty();
  expect(await readiness()).toBe(200);
});
