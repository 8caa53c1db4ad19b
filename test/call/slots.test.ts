import { create, type JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import type { ToolResult } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { logOf } from "../store/fixture.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
const never = new AbortController().signal;

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** Starts replicas with this many slots each. `hold` runs until it is released, `ask` asks first, `look` only reads. */
async function start(newContents: NewContents, replicaRunning: number) {
  /** Bodies in the order in which they were entered: replica and call. */
  const entered: string[] = [];
  const held = new Map<string, (result: ToolResult) => void>();
  const replicas = await startReplicas(
    { newContents, pace: [0], replicaRunning },
    {
      toolsOf: (gone, replica) => {
        const tool = (name: string, asks: string[], fields: { readOnly?: boolean } = {}) =>
          defineTool({
            ...{ name, description: "Runs until it is released.", input: z.object({}), ...fields },
            plan: () => ({ title: name, asks: asks.map((permission) => ({ permission, patterns: ["*"] })) }),
            async execute(_input, { callId, signal }) {
              entered.push(`${replica} ${callId}`);
              const { promise, resolve, reject } = Promise.withResolvers<ToolResult>();
              AbortSignal.any([gone, signal]).addEventListener("abort", () => reject(new Error("stopped")));
              held.set(callId, resolve);
              return await promise;
            },
          });
        const makes = defineTool({
          ...{ name: "makes", description: "Makes a call.", input: z.object({}) },
          plan: () => ({ title: "makes", asks: [] }),
          async execute(_input, ctx) {
            entered.push(`${replica} ${ctx.callId}`);
            const [result] = await ctx.calls([{ tool: "hold", input: {} }], { atomic: false });
            return { output: result?.text ?? "" };
          },
        });
        const leaves = defineTool({
          ...{ name: "leaves", description: "Ends before the call that it made.", input: z.object({}) },
          plan: () => ({ title: "leaves", asks: [] }),
          async execute(_input, ctx) {
            ctx.calls([{ tool: "hold", input: {} }], { atomic: false }).catch(() => {});
            await expect.poll(() => held.has(`${ctx.callId}.1`)).toBe(true);
            return { output: "left" };
          },
        });
        return [tool("hold", []), tool("ask", ["ask"]), tool("look", [], { readOnly: true }), makes, leaves];
      },
      onNews() {},
    },
  );
  onTestFinished(() => replicas.stop());
  for (const sessionId of ["ses_a", "ses_b"])
    await replicas.any().sessions.create(agent, create(CreateSessionRequestSchema, { sessionId }));
  const first = replicas.names()[0] ?? "";
  return {
    replicas,
    entered,
    async open(callId: string, tool = "hold", sessionId = "ses_a", at = first, metadata: JsonObject = {}) {
      const request = create(CallToolRequestSchema, { sessionId, callId, tool, metadata });
      return (await replicas.at(at).calls.open(agent, request)).record;
    },
    /** Waits until a call has been turned away. */
    async turnedAway(callId: string, sessionId = "ses_a"): Promise<string> {
      const titleOf = async () => {
        const log = await logOf(replicas.any().store, sessionId);
        return log
          .map(({ event }) => (event.case === "progress" && event.value.callId === callId ? event.value.title : ""))
          .join("");
      };
      await expect.poll(titleOf).not.toBe("");
      return await titleOf();
    },
    async release(callId: string): Promise<void> {
      await expect.poll(() => held.has(callId)).toBe(true);
      held.get(callId)?.({ output: "done" });
    },
    async untilEntered(...calls: string[]): Promise<void> {
      await expect.poll(() => entered.map((entry) => entry.split(" ")[1])).toEqual(calls);
    },
    record: (callId: string, sessionId = "ses_a") => replicas.any().store.calls.getCall(sessionId, callId),
    async end(callId: string, sessionId = "ses_a") {
      const { calls } = replicas.any();
      const { record } = await calls.getRecord(agent, sessionId, callId, "read");
      return (await calls.wait(record, 10_000, never)).part.state.case;
    },
  };
}

test("a call without a slot waits pending without an owner, says so, and starts when a slot is free", async () => {
  const { open, turnedAway, record, release, end, entered } = await start(inSqlite, 1);
  await open("c1");
  await open("c2");
  expect(await turnedAway("c2")).toBe("Waiting for a free slot: 1 calls run at this replica");
  expect(await record("c2")).toMatchObject({ owner: "", attempts: 0, part: { state: { case: "pending" } } });
  expect(entered).toEqual(["r1 c1"]);
  await release("c1");
  await release("c2");
  expect(await end("c2")).toBe("completed");
});

test("the calls of a tree get slots in the order in which they came, and the trees take turns", async () => {
  const { open, turnedAway, release, untilEntered, end } = await start(inSqlite, 1);
  await open("c1");
  for (const callId of ["a1", "a2", "a3"]) {
    await open(callId);
    await turnedAway(callId);
  }
  await open("b1", "hold", "ses_b");
  await turnedAway("b1", "ses_b");
  const order = ["c1", "a1", "b1", "a2", "a3"];
  for (const [index, callId] of order.entries()) {
    await untilEntered(...order.slice(0, index + 1));
    await release(callId);
  }
  expect(await end("a3")).toBe("completed");
});

test("a call without a slot is not lost, however long all slots are taken", async () => {
  const { replicas, open, turnedAway, release, end } = await start(inSqlite, 1);
  await open("c1");
  await open("c2");
  await turnedAway("c2");
  for (let minute = 0; minute < 3; minute += 1) {
    await replicas.outliveTheDead();
    await replicas.any().calls.recover();
  }
  await release("c1");
  await release("c2");
  expect(await end("c2")).toBe("completed");
});

test("built-in tools that only read need no slot", async () => {
  const { open, release, end } = await start(inSqlite, 1);
  await open("c1");
  await open("c2", "look");
  await release("c2");
  expect(await end("c2")).toBe("completed");
});

test("a body that waits for calls that it made gives its slot back meanwhile", async () => {
  const { open, release, end } = await start(inSqlite, 1);
  await open("c1", "makes");
  await release("c1.1");
  expect(await end("c1")).toBe("completed");
});

test("a body that ends while its calls run keeps no slot", async () => {
  const { open, release, end } = await start(inSqlite, 1);
  await open("c1", "leaves");
  expect(await end("c1")).toBe("completed");
  await end("c1.1");
  await open("c2");
  await release("c2");
  expect(await end("c2")).toBe("completed");
});

test("a call that its caller describes as one of a batch starts when it is approved", async () => {
  const { replicas, open, release, record, end } = await start(inSqlite, 1);
  await open("c1", "ask", "ses_a", undefined, { startsWithOthers: true });
  const ids = async () => (await record("c1"))?.part.permissionIds ?? [];
  await expect.poll(ids).toHaveLength(1);
  const { calls, sessions } = replicas.any();
  const { session } = await sessions.open(person, "ses_a", "read");
  const [permissionId = ""] = await ids();
  const response = { sessionId: "ses_a", permissionId, reply: PermissionReply.ONCE };
  await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, response));
  await release("c1");
  expect(await end("c1")).toBe("completed");
});

test("an answer at a replica without a free slot starts the call at another one", async () => {
  const { replicas, open, release, untilEntered, record, end, entered } = await start(inRedis(redis.url), 1);
  await open("c1", "hold", "ses_a", "r2");
  await open("c2", "ask");
  await untilEntered("c1");
  const { calls, sessions, store } = replicas.at("r2");
  const ids = async () => (await record("c2"))?.part.permissionIds ?? [];
  await expect.poll(ids).toHaveLength(1);
  const { session } = await sessions.open(person, "ses_a", "read");
  const [permissionId = ""] = await ids();
  const response = { sessionId: "ses_a", permissionId, reply: PermissionReply.ONCE };
  await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, response));
  expect((await store.permissions.findAsk(permissionId))?.settled?.by).toBe("ann");
  await release("c2");
  expect(await end("c2")).toBe("completed");
  expect(entered).toHaveLength(2);
  expect(entered[1]).toMatch(/^r[13] c2$/);
});

test("a call without a slot here starts at a replica that has one", async () => {
  const { open, release, end, entered } = await start(inRedis(redis.url), 1);
  await open("c1");
  await open("c2");
  await release("c2");
  expect(await end("c2")).toBe("completed");
  expect(entered[1]).toMatch(/^r[23] c2$/);
});
