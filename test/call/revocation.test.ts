import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallStore } from "../../src/call/ports.ts";
import { openStore } from "../../src/compose/store.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { read } from "../e2e/reading.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { serve } from "./server.ts";

const probe = defineTool({
  name: "probe",
  description: "Asks for the door and opens it.",
  input: z.object({ knock: z.string() }),
  plan: () => ({ title: "the door", asks: [{ permission: "probe", patterns: ["the door"] }] }),
  execute: () => ({ output: "open" }),
});

type Start = CallStore["startCall"];

/** Creates a gate that, once shut, holds back start marks until it is opened. */
function createGate() {
  const waiting: (() => void)[] = [];
  let isShut = false;
  let count = Promise.withResolvers<void>();
  let wanted = 0;
  return {
    /** Shuts the gate; resolves when `starts` start marks are held back. */
    shut(starts: number): Promise<void> {
      isShut = true;
      wanted = starts;
      count = Promise.withResolvers();
      return count.promise;
    },
    open(): void {
      isShut = false;
      for (const go of waiting.splice(0)) go();
    },
    async pass(): Promise<void> {
      if (!isShut) return;
      await new Promise<void>((go) => {
        waiting.push(go);
        if (waiting.length >= wanted) count.resolve();
      });
    },
  };
}

/** Serves with start marks that pass a gate, and then `startThrough`. */
function serveGated(
  gate: ReturnType<typeof createGate>,
  { store, startThrough = (start) => start }: { store?: string | undefined; startThrough?: (start: Start) => Start },
) {
  const open: typeof openStore = async (config, log) => {
    const opened = await openStore(config, log);
    const start = startThrough(opened.calls.startCall);
    const startCall: Start = async (step) => {
      await gate.pass();
      return await start(step);
    };
    const calls = new Proxy(opened.calls, {
      get: (target, name) => (name === "startCall" ? startCall : Reflect.get(target, name)),
    });
    return { ...opened, calls };
  };
  return serve([probe], { open, ...(store && { store }) });
}

type Service = Awaited<ReturnType<typeof serve>>;

async function begin({ agent }: Service, sessionId: string, callId: string = randomUUID()) {
  return read(agent.tools.executeTool({ sessionId, callId, tool: "probe", input: { knock: callId } }));
}

async function answer({ person }: Service, sessionId: string, permissionId: string, reply: Reply, offerId = "") {
  await person.permissions.respondToPermission({ sessionId, permissionId, reply, offerId });
}

/** Runs calls that rely on a project grant, revokes it meanwhile, and returns the calls that started afterwards. */
async function startedAfterRevocation(services: readonly [Service, Service], gate: ReturnType<typeof createGate>) {
  const [here, there] = services;
  const sessions = Array.from({ length: 8 }, (_, i) => `ses_load${i}`);
  for (const sessionId of sessions) await here.agent.sessions.createSession({ sessionId });
  const first = await begin(here, "ses_load0");
  const ask = await first.until("permissionAsked");
  const offer = ask.offers.find(({ scope }) => scope === GrantScope.PROJECT);
  await answer(there, "ses_load0", ask.id, Reply.ALWAYS, offer?.id);
  const { grantId } = await first.until("permissionSettled");
  await first.end();

  let ran = 0;
  const ranEnough = Promise.withResolvers<void>();
  const loads = sessions.map(async (sessionId, i) => {
    for (;;) {
      const service = i % 2 === 0 ? here : there;
      const callId = randomUUID();
      const stream = await begin(service, sessionId, callId);
      const { event } = await stream.find(
        ({ event }) =>
          event.case === "permissionAsked" || (event.case === "part" && event.value.state.case === "completed"),
      );
      if (event.case === "permissionAsked") return await service.agent.tools.cancelTool({ sessionId, callId });
      ran += 1;
      if (ran === 40) ranEnough.resolve();
    }
  });
  await ranEnough.promise;
  await gate.shut(4);
  await there.person.permissions.revokeGrant({ grantId });
  const numbers = await Promise.all(
    sessions.map(async (sessionId) => (await here.agent.sessions.getSession({ sessionId })).session?.lastSeq ?? 0n),
  );
  gate.open();
  await Promise.all(loads);
  const started: string[] = [];
  for (const [i, sessionId] of sessions.entries()) {
    const watching = new AbortController();
    const { session } = await here.agent.sessions.getSession({ sessionId });
    const afterSeq = numbers[i] ?? 0n;
    if (session?.lastSeq === afterSeq) continue;
    const log = here.agent.tools.watchSession({ sessionId, afterSeq }, { signal: watching.signal });
    for await (const { event, lastSeq } of log) {
      if (event?.event.case === "part" && event.event.value.state.case === "running")
        started.push(event.event.value.callId);
      if (lastSeq >= (session?.lastSeq ?? 0n)) break;
    }
    watching.abort();
  }
  return started;
}

const forgetful =
  (start: Start): Start =>
  ({ rulesVersion: _, ...step }: Parameters<Start>[0]) =>
    start(step);

describe("once RevokeGrant has returned no call starts that relies on the grant", () => {
  let redis: RedisServers;
  beforeAll(async () => {
    redis = await startRedis();
  });
  afterAll(() => redis.stop());

  test("under load, on SQLite", async () => {
    const gate = createGate();
    const service = await serveGated(gate, {});
    expect(await startedAfterRevocation([service, service], gate)).toEqual([]);
  });

  test("under load, at two replicas over Redis", async () => {
    const gate = createGate();
    const here = await serveGated(gate, { store: redis.url });
    const there = await serveGated(gate, { store: redis.url });
    expect(await startedAfterRevocation([here, there], gate)).toEqual([]);
  });

  test("a start mark that ignores the rules version starts calls on a revoked grant", async () => {
    const gate = createGate();
    const service = await serveGated(gate, { startThrough: forgetful });
    expect((await startedAfterRevocation([service, service], gate)).length).toBeGreaterThan(0);
  });
});

test("an ask that another call's grant settled asks again if that grant is revoked before the start", async () => {
  const gate = createGate();
  const service = await serveGated(gate, {});
  const sessionId = "ses_covered";
  await service.agent.sessions.createSession({ sessionId });
  const [answered, covered] = [await begin(service, sessionId), await begin(service, sessionId)];
  const [own, other] = [await answered.until("permissionAsked"), await covered.until("permissionAsked")];
  // The answered call starts with the settlement of its ask; the other one is claimed, and judged again.
  const held = gate.shut(1);
  await answer(service, sessionId, own.id, Reply.ALWAYS);
  const { settledWith, grantId } = await covered.until("permissionSettled");
  expect(settledWith).toBe(own.id);
  await held;
  await service.person.permissions.revokeGrant({ grantId });
  gate.open();
  // The approver answered the ask of this call itself.
  expect((await answered.end()).state.case).toBe("completed");
  const again = await covered.until("permissionAsked");
  expect([again.id === other.id, again.patterns]).toEqual([false, other.patterns]);
  await answer(service, sessionId, again.id, Reply.ONCE);
  expect((await covered.end()).state.case).toBe("completed");
});
