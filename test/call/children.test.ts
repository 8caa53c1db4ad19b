import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  PermissionResponseSchema,
  ToolEffects,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Store } from "../../src/call/ports.ts";
import { failed } from "../../src/call/state.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { type Replicas, startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { startReplica } from "./replica.ts";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };

/** Tools: one that asks, one that runs until it is stopped, and parents that make calls of both. */
function family({ waits, gather }: { waits: boolean; gather?: GatherChange | undefined }): DefinedTool[] {
  const input = z.object({});
  return [
    defineTool({
      name: "gather",
      description: "Makes calls, and may be entered again.",
      input,
      ...gather,
      durable: true,
      plan: () => ({ title: "gather", asks: [] }),
      async execute(_, ctx) {
        entered.gather += 1;
        const children = ["deploy", "quick"].map((tool) => ({ tool, input: {} }));
        const made = await ctx.calls(children, { atomic: false });
        return { output: made.map(({ text }) => text).join(", ") };
      },
    }),
    defineTool({
      name: "quick",
      description: "Ends at once.",
      input,
      plan: () => ({ title: "quick", asks: [] }),
      execute: () => ({ output: `quick ${++entered.quick}` }),
    }),
    defineTool({
      name: "deploy",
      description: "Asks.",
      input,
      plan: () => ({ title: "deploy", asks: [{ permission: "deploy", patterns: ["x"] }] }),
      execute: () => ({ output: "deployed" }),
    }),
    defineTool({
      name: "hold",
      description: "Runs.",
      input,
      plan: () => ({ title: "hold", asks: [] }),
      execute: async (_, ctx) => {
        await ctx.output(Buffer.from("held"));
        await new Promise((_, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason)));
        return {};
      },
    }),
    defineTool({
      name: "make",
      description: "Makes calls.",
      input,
      plan: () => ({ title: "make", asks: [] }),
      async execute(_, ctx) {
        const children = ["deploy", "hold"].map((tool) => ({ tool, input: {} }));
        const made = ctx.calls(children, { atomic: false });
        if (waits) await made;
        await expect.poll(async () => ctx.signal.aborted || (await isWaiting()), { interval: 5 }).toBe(true);
        return { output: "made" };
      },
    }),
  ];
}

/** What a later definition of the durable parent has otherwise. */
type GatherChange = { description?: string; version?: string; permissionVersion?: string; input?: z.ZodObject };

/** Times that bodies were entered. */
const entered = { gather: 0, quick: 0 };

/** End of a durable parent whose body does not go on. */
const changed = {
  reason: ToolErrorReason.EXECUTOR_LOST,
  effects: ToolEffects.UNKNOWN,
  error: expect.stringContaining("has changed since the call began"),
};

/** Set by each test: true once its calls are as they shall be when the parent ends. */
let isWaiting = async () => true;

const places: [string, (url: string) => NewContents][] = [
  ["SQLite, restarted", () => inSqlite],
  ["Redis, another replica", inRedis],
];

describe.each(places)("on %s", (_, contentsOf) => {
  test("a call whose replica dies ends its open calls in the same step, and withdraws what they asked", async () => {
    const setting = { newContents: contentsOf(redis.url), pace: [0] };
    const replicas = await startReplicas(setting, { toolsOf: () => family({ waits: true }), onNews() {} });
    const [first = ""] = replicas.names();
    const { calls, sessions } = replicas.at(first);
    await sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
    await calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId: "c1", tool: "make" }));
    const openAsks = () => replicas.any().store.permissions.openAsks({ limit: 10 });
    const partOf = async (callId: string) => (await replicas.any().store.calls.getCall("ses_a", callId))?.part;
    await expect.poll(openAsks).toHaveLength(1);
    await expect.poll(async () => (await partOf("c1.2"))?.state.case).toBe("running");
    expect(await partOf("c1.1")).toMatchObject({ parentCallId: "c1", background: false });

    await replicas.kill(first);
    await replicas.outliveTheDead();
    await replicas.each(({ calls }) => calls.recover());
    expect((await partOf("c1"))?.state.value).toMatchObject({ reason: ToolErrorReason.EXECUTOR_LOST });
    const withdrawn = {
      reason: ToolErrorReason.CANCELLED,
      error: "Withdrawn: call c1 (make), which made this call, has ended (EXECUTOR_LOST).",
    };
    expect((await partOf("c1.1"))?.state.value).toMatchObject({ ...withdrawn, effects: ToolEffects.NONE });
    const running = (await partOf("c1.2"))?.state.value;
    // Whichever the recovery meets first.
    expect([withdrawn.reason, ToolErrorReason.EXECUTOR_LOST]).toContain(
      running && "reason" in running && running.reason,
    );
    expect(running).toMatchObject({ effects: ToolEffects.UNKNOWN });
    const ref = { root: "ses_a", sessionId: "ses_a", callId: "c1.1" };
    const [ask] = await replicas.any().store.permissions.asksOf(ref);
    expect(ask?.settled).toMatchObject({ outcome: PermissionOutcome.WITHDRAWN, message: withdrawn.error });
    expect(await openAsks()).toEqual([]);
    await replicas.stop();
  });

  test("a call that ends while its parent's open calls are listed ends once", async () => {
    // The list of open calls is no snapshot: it may hold one that another replica has ended since.
    const tamper = (store: Store): Store => ({
      ...store,
      calls: {
        ...store.calls,
        async listCalls(filter) {
          const listed = await store.calls.listCalls(filter);
          const child = listed.find(({ part, ref }) => ref.callId === "c1.2" && part.state.case === "running");
          if (!child) return listed;
          const end = { reason: ToolErrorReason.EXECUTOR_LOST, error: "Another replica was first." };
          const part = failed(child.part, end, store.calls.now());
          await store.calls.finishCall({ ref: child.ref, guard: { version: child.version }, part });
          const now = await store.calls.getCall("ses_a", "c1.2");
          return listed.map((each) => (each === child ? (now ?? each) : each));
        },
      },
    });
    const setting = { newContents: contentsOf(redis.url), pace: [0], tamper };
    const replicas = await startReplicas(setting, { toolsOf: () => family({ waits: true }), onNews() {} });
    const [first = ""] = replicas.names();
    const { calls, sessions } = replicas.at(first);
    await sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
    await calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId: "c1", tool: "make" }));
    const partOf = async (callId: string) => (await replicas.any().store.calls.getCall("ses_a", callId))?.part;
    await expect.poll(async () => (await partOf("c1.1"))?.permissionIds).toHaveLength(1);
    await expect.poll(async () => (await partOf("c1.2"))?.state.case).toBe("running");
    await replicas.kill(first);
    await replicas.outliveTheDead();
    await replicas.each(({ calls }) => calls.recover());
    for (const callId of ["c1", "c1.2"])
      expect((await partOf(callId))?.state.value).toMatchObject({ reason: ToolErrorReason.EXECUTOR_LOST });
    expect((await partOf("c1.1"))?.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED });
    await replicas.stop();
  });

  test.each([
    ["answered at any replica", false],
    ["whose replica dies before the answer", true],
  ])("a durable parent waits without an owner, and ends with the results of its calls: %s", async (_name, dies) => {
    const { replicas, partOf, recordOf } = await startGather(contentsOf(redis.url));
    const [first = ""] = replicas.names();
    if (dies) {
      await replicas.kill(first);
      await replicas.outliveTheDead();
      await replicas.each(({ calls }) => calls.recover());
    }
    await expect.poll(async () => (await recordOf("c1"))?.owner, { timeout: 60_000 }).toBe("");
    expect((await partOf("c1"))?.state.case).toBe("running");
    await replicas.each(({ calls }) => calls.recover());
    expect((await recordOf("c1"))?.owner).toBe("");
    await approve(replicas);
    const recovered = async () => {
      await replicas.outliveTheDead();
      await replicas.each(({ calls }) => calls.recover());
      return (await partOf("c1"))?.state.value;
    };
    await expect.poll(recovered).toMatchObject({ output: "deployed, quick 1" });
    expect(entered.quick).toBe(1);
    expect(entered.gather).toBeGreaterThan(1);
    await replicas.stop();
  });

  test.each<[string, GatherChange, object]>([
    ["goes on if only its words changed", { description: "Makes calls." }, { output: "deployed, quick 1" }],
    ["ends with its version", { version: "2" }, changed],
    ["ends with what it may ask", { permissionVersion: "2" }, changed],
    ["ends with its input", { input: z.object({ more: z.string().optional() }) }, changed],
  ])("a durable parent that had begun before an upgrade %s", async (_name, later, end) => {
    const { replicas, partOf, recordOf } = await startGather(contentsOf(redis.url), { later });
    await expect.poll(async () => (await recordOf("c1"))?.owner, { timeout: 60_000 }).toBe("");
    for (const name of replicas.names()) await replicas.kill(name);
    await replicas.outliveTheDead();
    await replicas.each(({ calls }) => calls.recover());
    if ((await partOf("c1"))?.state.case === "running") await approve(replicas);
    const recovered = async () => {
      await replicas.outliveTheDead();
      await replicas.each(({ calls }) => calls.recover());
      return (await partOf("c1"))?.state.value;
    };
    await expect.poll(recovered).toMatchObject(end);
    expect(entered.quick).toBe(1);
    expect(await replicas.any().store.permissions.openAsks({ limit: 10 })).toEqual([]);
    await replicas.stop();
  });

  test("a durable parent that no replica resumes within 60 s of the end of its last call is lost", async () => {
    const resumed: string[] = [];
    const tamper = (store: Store): Store => ({
      ...store,
      calls: {
        ...store.calls,
        async resumeCall({ callId }) {
          resumed.push(callId);
          return undefined;
        },
      },
    });
    const { replicas, partOf, recordOf } = await startGather(contentsOf(redis.url), { tamper });
    await expect.poll(async () => (await recordOf("c1"))?.owner, { timeout: 60_000 }).toBe("");
    await approve(replicas);
    await expect.poll(async () => (await partOf("c1.1"))?.state.case).toBe("completed");
    await replicas.each(({ calls }) => calls.recover());
    expect((await partOf("c1"))?.state.case).toBe("running");
    await replicas.outliveTheDead();
    const recovered = async () => {
      await replicas.each(({ calls }) => calls.recover());
      return (await partOf("c1"))?.state.value;
    };
    await expect.poll(recovered).toMatchObject({
      reason: ToolErrorReason.EXECUTOR_LOST,
      error: expect.stringContaining("after its calls had ended"),
    });
    expect(resumed.length).toBeGreaterThan(0);
    await replicas.stop();
  });
});

/** Starts replicas, and a durable parent whose first call waits for an answer and whose second one has ended. */
async function startGather(
  newContents: NewContents,
  { tamper, later }: { tamper?: (store: Store) => Store; later?: GatherChange } = {},
) {
  Object.assign(entered, { gather: 0, quick: 0 });
  const setting = { newContents, pace: [0], tamper };
  let gather: GatherChange | undefined;
  const replicas = await startReplicas(setting, { toolsOf: () => family({ waits: true, gather }), onNews() {} });
  gather = later;
  const [first = ""] = replicas.names();
  const { calls, sessions } = replicas.at(first);
  await sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  await calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId: "c1", tool: "gather" }));
  const recordOf = (callId: string) => replicas.any().store.calls.getCall("ses_a", callId);
  const partOf = async (callId: string) => (await recordOf(callId))?.part;
  await expect.poll(async () => (await partOf("c1.1"))?.permissionIds).toHaveLength(1);
  await expect.poll(async () => (await partOf("c1.2"))?.state.case).toBe("completed");
  return { replicas, partOf, recordOf };
}

/** Answers the open request at any replica, and lets the replicas claim what that approved. */
async function approve(replicas: Replicas): Promise<void> {
  const { permissions, sessions, store } = replicas.any();
  const { session } = await sessions.open(agent, "ses_a", "read");
  const [ask] = await store.permissions.openAsks({ limit: 1 });
  const answer = { sessionId: "ses_a", permissionId: ask?.request.id ?? "", reply: PermissionReply.ONCE };
  await permissions.reply(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, answer));
  await replicas.each(({ calls }) => calls.recover());
}

test("a call that returns while calls that it made are open ends them with it", async () => {
  const { calls, call, record, store, over } = await startReplica({ tools: family({ waits: false }) });
  const partOf = async (callId: string) => (await store.calls.getCall("ses_a", callId))?.part;
  isWaiting = async () =>
    (await store.permissions.openAsks({ limit: 10 })).length === 1 && (await partOf("c1.2"))?.state.case === "running";
  await call("make");
  await over;
  await expect.poll(async () => (await record()).part.state.case).toBe("completed");
  for (const [id, effects] of [["c1.1", ToolEffects.NONE] as const, ["c1.2", ToolEffects.UNKNOWN] as const]) {
    expect((await partOf(id))?.state.value).toMatchObject({
      reason: ToolErrorReason.CANCELLED,
      error: "Withdrawn: call c1 (make), which made this call, has ended (completed).",
      effects,
    });
  }
  // Nothing of it runs any more.
  await calls.renew();
});

test("a call that is cancelled stops what it made first, so that the output of those is stored", async () => {
  const { calls, call, store } = await startReplica({ tools: family({ waits: true }) });
  const partOf = async (callId: string) => (await store.calls.getCall("ses_a", callId))?.part;
  await call("make");
  await expect.poll(async () => (await store.permissions.openAsks({ limit: 10 })).length).toBe(1);
  await expect.poll(async () => (await partOf("c1.2"))?.state.case).toBe("running");
  await calls.cancel(agent, "ses_a", "c1", "Enough.");
  expect((await partOf("c1"))?.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED, error: "Enough." });
  expect((await partOf("c1.2"))?.state.value).toMatchObject({
    reason: ToolErrorReason.CANCELLED,
    error: "The call that made this one was stopped.",
    metadata: { originalSize: 4 },
  });
});
