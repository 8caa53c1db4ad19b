import { existsSync } from "node:fs";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createSessions } from "../../src/call/sessions.ts";
import type { Logger } from "../../src/core/logger.ts";
import { createKeys, shardOfTree } from "../../src/store/redis/keys.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { connect, refusal } from "../e2e/clients.ts";
import { type Service, startService, unconfined } from "../e2e/service.ts";
import { addSession, callRef, openCall } from "./fixture.ts";
import { type CopiedServers, startSentinelWithCopies } from "./redis-failover.ts";
import { startRedis } from "./redis-server.ts";
import { quiet } from "./redis-store.ts";

let servers: CopiedServers;
beforeAll(async () => {
  servers = await startSentinelWithCopies(1);
});
afterAll(() => servers.stop());

test("a master that accepts writes without a copy is reported in the log, in readiness and by GetServerInfo", async () => {
  const service = await startService({ settings: `store = "${servers.url}"\n` });
  const { storeDetails } = await connect(service, "caller").tools.getServerInfo({});
  expect(storeDetails).toMatchObject({
    copies: 1,
    expectedCopies: 1,
    requiredCopies: 1,
    warnings: [expect.stringContaining("min-replicas-to-write 0")],
  });
  const ready = await fetch(`${service.url}/readyz`);
  expect(ready.status).toBe(200);
  expect(await ready.text()).toBe(
    "ok\nwarning: the store has fewer copies than it should, or a failover may lose what was acknowledged: the log and GetServerInfo say why\n",
  );
});

test("a Redis without copies needs no such settings", async () => {
  const single = await startRedis();
  const { calls } = await openRedisStore({ url: single.url, log: quiet });
  expect(calls.safety()).toMatchObject({ copies: 0, warnings: [] });
  await calls.close();
  await single.stop();
});

describe("while the only copy does not answer", () => {
  const call = (callId: string, sessionId: string) => ({
    ...{ sessionId, callId, tool: "write", agent: "free", waitMs: 60_000 },
    input: { filePath: `ledger-${callId}`, content: "ran" },
  });
  const hasRun = (service: Service, callId: string) => existsSync(join(service.workspace, `ledger-${callId}`));
  /** Waits until the master knows that its copy has everything, so that only what follows is refused. */
  const untilCopied = async () => {
    const master = new Redis(servers.ports[0] ?? 0);
    onTestFinished(() => master.disconnect());
    await master.set("copied", "1");
    await master.wait(1, 0);
  };
  const freezeCopy = () => {
    const [, copy = 0] = servers.ports;
    servers.signal(copy, "SIGSTOP");
    const go = () => servers.signal(copy, "SIGCONT");
    onTestFinished(go);
    return go;
  };

  test("a call is refused, is not run, and ends without effects, which a retry reports", async () => {
    const service = await startService({ settings: `store = "${servers.url}"\n${unconfined}` });
    const caller = connect(service, "caller");
    const sessionId = await caller.newSession();
    expect((await caller.tools.callTool(call("before", sessionId))).part?.state.case).toBe("completed");
    await untilCopied();
    const thaw = freezeCopy();
    expect(await refusal(caller.tools.callTool(call("frozen", sessionId)))).toMatchObject({ code: Code.Unavailable });
    expect(hasRun(service, "frozen")).toBe(false);
    thaw();
    const again = await caller.tools.callTool(call("frozen", sessionId));
    expect(again.part?.state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.NONE },
    });
    expect(hasRun(service, "before")).toBe(true);
    expect(hasRun(service, "frozen")).toBe(false);
  });

  test("a watcher at another replica does not see an event that the copy does not have", async () => {
    const [writer, reader] = [
      await openRedisStore({ url: servers.url, log: quiet, copies: { strict: false } }),
      await openRedisStore({ url: servers.url, log: quiet }),
    ];
    const sessionId = `ses_${crypto.randomUUID()}`;
    await addSession(writer, sessionId);
    expect((await reader.calls.readLog(sessionId, 0, 1_000)).events).toEqual([]);
    const thaw = freezeCopy();
    await openCall(writer, callRef("call_1", sessionId, sessionId));
    await expect(reader.calls.readLog(sessionId, 0, 1_000)).rejects.toThrow("0 of 1 required copies");
    thaw();
    await vi.waitFor(async () => expect((await reader.calls.readLog(sessionId, 0, 1_000)).events).toHaveLength(1));
    await Promise.all([writer.calls.close(), reader.calls.close()]);
  });

  test("a replica does not refuse a later store id: its master may be the one that was left behind", async () => {
    const keys = createKeys("toolgate");
    const { calls } = await openRedisStore({ url: servers.url, log: quiet });
    onTestFinished(() => calls.close());
    const { expectStore } = createSessions({ store: calls, workspaces: {}, agents: new Set() });
    const root = `ses_${crypto.randomUUID()}`;
    const before = calls.storeIdOf(root);
    const thaw = freezeCopy();
    const later = `${before.split(".")[0]}.7`;
    await expect(expectStore(later, root)).rejects.toMatchObject({ reason: ErrorReason.STORE_UNAVAILABLE });
    thaw();
    await vi.waitFor(() =>
      expect(expectStore(later, root)).rejects.toMatchObject({ reason: ErrorReason.STORE_CHANGED }),
    );

    // Another replica has found that a failover lost something of this session.
    const master = new Redis(servers.ports[0] ?? 0);
    onTestFinished(() => master.disconnect());
    await master.hset(keys.generations, shardOfTree(root), 7);
    await expectStore(later, root);
    await expect(expectStore(before, root)).rejects.toMatchObject({ reason: ErrorReason.STORE_CHANGED });
    await master.hdel(keys.generations, `${shardOfTree(root)}`);
  });

  test("without strict mode it is run, so a failover could lose it", async () => {
    const service = await startService({ settings: `store = "${servers.url}"\nstore_strict = false\n${unconfined}` });
    const caller = connect(service, "caller");
    const sessionId = await caller.newSession();
    freezeCopy();
    const { part } = await caller.tools.callTool(call("lax", sessionId));
    expect(part?.state.case).toBe("completed");
    expect(hasRun(service, "lax")).toBe(true);
  });
});

test("the settings of a master that waits for its copies are accepted, and a long lag is not", async () => {
  const warned: string[] = [];
  const log: Logger = { ...quiet, warn: (message) => void warned.push(message) };
  const set = (name: string, value: number) =>
    Promise.all(
      servers.ports.map(async (port) => {
        const client = new Redis({ host: "127.0.0.1", port });
        await client.config("SET", name, value);
        client.disconnect();
      }),
    );
  const safety = async () => {
    const { calls } = await openRedisStore({ url: servers.url, log });
    const found = calls.safety();
    await calls.close();
    return found;
  };
  await set("min-replicas-to-write", 1);
  await set("min-replicas-max-lag", 5);
  expect(await safety()).toMatchObject({ copies: 1, warnings: [] });
  // Of one or two copies all are required.
  expect(warned.splice(0)).toEqual([expect.stringContaining("run three copies, of which two are enough")]);
  await set("min-replicas-max-lag", 10);
  expect((await safety()).warnings).toEqual([expect.stringContaining("CONFIG SET min-replicas-max-lag 5")]);
  expect(warned).toContainEqual(expect.stringContaining("min-replicas-max-lag 10"));
  await set("min-replicas-to-write", 0);
});

test("after a planned failover a store leaves the old master at once, although that still accepts writes", async () => {
  const store = await openRedisStore({ url: servers.url, log: quiet, copies: { strict: false } });
  await servers.failOver("planned");
  // Later the old master becomes a copy: writes to it fail, so each store leaves it.
  const isAtNewOfTwoMasters = async () => {
    const id = `ses_${crypto.randomUUID()}`;
    const added = await addSession(store, id).then(
      () => true,
      () => false,
    );
    const [old, now] = await Promise.all(servers.ports.map((port) => stateOf(port, id)));
    return added && now?.has && !old?.has && old?.role === "master";
  };
  await vi.waitUntil(isAtNewOfTwoMasters, { timeout: 60_000 });
  await store.calls.close();
});

/** Returns whether a server has a session, and its role after that. */
async function stateOf(port: number, id: string): Promise<{ has: boolean; role: unknown }> {
  const client = new Redis({ host: "127.0.0.1", port });
  const has = (await client.exists(`toolgate:{${id}}:root`)) === 1;
  const [role] = await client.role();
  client.disconnect();
  return { has, role };
}
