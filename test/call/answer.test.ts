import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, PermissionResponseSchema, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Store } from "../../src/call/ports.ts";
import type { Principal } from "../../src/core/principal.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { workspaceRoot } from "../../src/core/workspace-root.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { agent } from "../model/clients.ts";
import { type Setting, startReplicas } from "../model/replicas.ts";
import { inRedis } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
const never = new AbortController().signal;

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/**
 * Starts three replicas on one Redis, with a call at `r1` that waits for its ask. `plan` returns what the tool asks: the third
 * time for the first answer.
 */
async function waiting(
  setting: Partial<Setting> = {},
  plan: (count: number) => Promise<string> = async () => "production",
) {
  /** The replicas whose body was entered, and the steps that were taken, each with its replica. */
  const [entered, steps]: [string[], string[]] = [[], []];
  let planned = 0;
  const counted = () => {
    planned += 1;
    return planned;
  };
  const tamper = (ports: Store, replica: string): Store => {
    const watched = setting.tamper?.(ports, replica) ?? ports;
    const { calls, permissions } = watched;
    return {
      ...watched,
      calls: over(calls, {
        async startCall(step) {
          steps.push(`${replica} startCall`);
          return await calls.startCall(step);
        },
        async claimCall(...claim) {
          steps.push(`${replica} claimCall`);
          return await calls.claimCall(...claim);
        },
      }),
      permissions: over(permissions, {
        async settle(settlement) {
          const result = await permissions.settle(settlement);
          steps.push(`${replica} settle${settlement.calls.some(({ start }) => start) ? " with start" : ""}`);
          return result;
        },
      }),
    };
  };
  const replicas = await startReplicas(
    { newContents: inRedis(redis.url), pace: [0], ...setting, tamper },
    {
      toolsOf: (_, replica) => [
        defineTool({
          name: "deploy",
          description: "Deploys.",
          input: z.object({}),
          plan: async () => ({
            title: "deploy",
            asks: [{ permission: "deploy", patterns: [await plan(counted())] }],
          }),
          execute() {
            entered.push(replica);
            return { output: "deployed" };
          },
        }),
      ],
      onNews() {},
    },
  );
  onTestFinished(() => replicas.stop());
  const { sessions, calls, store } = replicas.at("r1");
  await sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_1", tool: "deploy" });
  const { record } = await calls.open(agent, request);
  const openAsk = async () =>
    (await store.permissions.asksOf(record.ref)).find(({ settled }) => !settled)?.request.id ?? "";
  await expect.poll(openAsk).not.toBe("");
  steps.length = 0;
  return {
    replicas,
    entered,
    steps,
    openAsk,
    record: () => store.calls.getCall("ses_a", "call_1"),
    async answer(at: string, permissionId: string, reply: PermissionReply = PermissionReply.ONCE): Promise<void> {
      const { calls, sessions } = replicas.at(at);
      const { session } = await sessions.open(person, "ses_a", "read");
      const response = { sessionId: "ses_a", permissionId, reply };
      await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, response));
    },
    end: async () => (await calls.wait(record, 10_000, never)).part.state,
  };
}

/** Returns a port with some methods replaced; the others keep their own object. */
function over<Port extends object>(port: Port, methods: Partial<Port>): Port {
  return new Proxy(port, { get: (target, name) => Reflect.get(name in methods ? methods : target, name) });
}

test("a waiting call has no owner, and starts in the step of its answer at the replica that got the answer", async () => {
  const { record, answer, openAsk, end, entered, steps } = await waiting();
  expect(await record()).toMatchObject({ owner: "", attempts: 0, part: { state: { case: "pending" } } });
  await answer("r2", await openAsk());
  expect(await end()).toMatchObject({ case: "completed" });
  expect([entered, steps]).toEqual([["r2"], ["r2 settle with start"]]);
});

test("a replica that drains records the answer, and another one runs the call at once", async () => {
  const { replicas, answer, openAsk, end, entered, steps } = await waiting();
  await replicas.at("r2").calls.drain(0);
  await answer("r2", await openAsk());
  expect(await end()).toMatchObject({ case: "completed" });
  expect(entered).toHaveLength(1);
  expect(entered).not.toContain("r2");
  expect(steps.filter((step) => step.startsWith("r2"))).toEqual(["r2 settle"]);
});

test("a replica with former rules takes no answer, and another one takes it and runs the call", async () => {
  let former: readonly string[] = [];
  const { answer, openAsk, end, entered } = await waiting({ agreesOnPolicy: (replica) => !former.includes(replica) });
  const ask = await openAsk();
  former = ["r1", "r2"];
  await expect(answer("r2", ask)).rejects.toMatchObject({ reason: ErrorReason.DRAINING });
  await answer("r3", ask);
  expect(await end()).toMatchObject({ case: "completed" });
  expect(entered).toEqual(["r3"]);
});

test("an answer is recorded although judging its call takes long; the call is then judged again and runs", async () => {
  const { answer, openAsk, end, entered, steps } = await waiting({}, async (count) => {
    if (count === 3) await delay(60_000, undefined, { ref: false });
    return "production";
  });
  await answer("r2", await openAsk());
  expect(await end()).toMatchObject({ case: "completed" });
  expect([entered, steps]).toEqual([["r2"], ["r2 settle", "r2 claimCall", "r2 startCall"]]);
});

test("a call that would do something else than was approved does not start with the answer, and asks again", async () => {
  const { record, answer, openAsk, end, entered } = await waiting({}, async (count) =>
    count < 3 ? "production" : "staging",
  );
  const first = await openAsk();
  await answer("r2", first);
  await expect.poll(openAsk).not.toBe("");
  expect(await openAsk()).not.toBe(first);
  expect(await record()).toMatchObject({ owner: "", attempts: 0 });
  expect(entered).toEqual([]);
  await answer("r3", await openAsk());
  expect(await end()).toMatchObject({ case: "completed" });
  expect(entered).toEqual(["r3"]);
});

test("a call whose start was recorded while the answer of the store was lost runs once", async () => {
  let isLost = false;
  const { answer, openAsk, end, entered } = await waiting({
    tamper: (ports) => ({
      ...ports,
      permissions: over(ports.permissions, {
        async settle(settlement) {
          const result = await ports.permissions.settle(settlement);
          if (isLost) return result;
          isLost = true;
          throw new RequestError(ErrorReason.STORE_UNAVAILABLE, "the connection was lost");
        },
      }),
    }),
  });
  await answer("r2", await openAsk());
  expect(await end()).toMatchObject({ case: "completed" });
  expect(entered).toEqual(["r2"]);
});

test("a call whose ask is settled before the replica that opened it knows that it is open starts at once", async () => {
  const known = Promise.withResolvers<void>();
  const { replicas, answer, openAsk, entered } = await waiting({
    tamper: (ports) => ({
      ...ports,
      calls: over(ports.calls, {
        async openAsks(step) {
          const isOpened = await ports.calls.openAsks(step);
          if (step.fence.ref.callId === "call_2") await known.promise;
          return isOpened;
        },
      }),
    }),
  });
  const { calls, store } = replicas.at("r1");
  const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_2", tool: "deploy" });
  const { record } = await calls.open(agent, request);
  await expect.poll(async () => (await store.permissions.asksOf(record.ref)).length).toBe(1);
  await answer("r1", await openAsk(), PermissionReply.ALWAYS);
  expect((await store.permissions.asksOf(record.ref))[0]?.settled).toBeDefined();
  known.resolve();
  expect((await calls.wait(record, 10_000, never)).part.state).toMatchObject({ case: "completed" });
  expect(entered).toEqual(["r1", "r1"]);
});

test("a call that another call's always covers starts at once, although an answer to its ask has just lost", async () => {
  const [begun, covered] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { replicas, answer, openAsk, entered } = await waiting({
    tamper: (ports) => ({
      ...ports,
      permissions: over(ports.permissions, {
        async settle(settlement) {
          const isOwn = settlement.settled.length === 1 && settlement.calls[0]?.ref.callId === "call_2";
          if (isOwn) begun.resolve();
          if (isOwn) await covered.promise;
          return await ports.permissions.settle(settlement);
        },
      }),
    }),
  });
  const { calls, store } = replicas.at("r1");
  const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_2", tool: "deploy" });
  const { record } = await calls.open(agent, request);
  const asks = async () => await store.permissions.asksOf(record.ref);
  await expect.poll(async () => (await asks()).length).toBe(1);
  const own = answer("r1", (await asks())[0]?.request.id ?? "");
  await begun.promise;
  await answer("r1", await openAsk(), PermissionReply.ALWAYS);
  await expect.poll(() => entered).toEqual(["r1"]);
  covered.resolve();
  await expect(own).rejects.toMatchObject({ reason: ErrorReason.ALREADY_ANSWERED });
  expect((await calls.wait(record, 10_000, never)).part.state).toMatchObject({ case: "completed" });
  expect(entered).toEqual(["r1", "r1"]);
});

test("an approved call that no replica claims within a day ends TIMEOUT, and does not run", async () => {
  let former: readonly string[] = [];
  const { replicas, answer, openAsk, end, entered } = await waiting({
    agreesOnPolicy: (replica) => !former.includes(replica),
  });
  const ask = await openAsk();
  former = ["r1", "r3"];
  await replicas.at("r2").calls.drain(0);
  await answer("r2", ask);
  replicas.advance(86_400_001);
  await replicas.at("r1").calls.recover();
  expect(await end()).toMatchObject({ case: "error", value: { reason: ToolErrorReason.TIMEOUT } });
  expect(entered).toEqual([]);
});
