import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { CallStore, Store } from "../../src/call/ports.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { ReplicaDied } from "../model/reach.ts";
import { startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

const places: [string, (url: string) => NewContents][] = [
  ["SQLite, restarted", () => inSqlite],
  ["Redis, another replica", inRedis],
];

/** A parent that makes two calls which start together, and stores a memo when they may. */
function tools(entered: string[], gates: string[]): DefinedTool[] {
  const input = z.object({});
  return [
    defineTool({
      name: "together",
      description: "Makes calls that start together.",
      input,
      durable: { lossNote: ({ memo }) => `It had stored ${JSON.stringify(memo)}.` },
      plan: () => ({ title: "together", asks: [] }),
      async execute(_, ctx) {
        const changes = {
          async beforeStart() {
            gates.push("open");
            await ctx.durable.store({ opened: gates.length });
          },
          beforeWrite: async () => {},
        };
        const children = ["one", "two"].map((tool) => ({ tool, input: {} }));
        const made = await ctx.calls(children, { atomic: true, changes });
        return { output: `${JSON.stringify(ctx.durable.memo)}: ${made.map(({ text }) => text).join(", ")}` };
      },
    }),
    ...["one", "two"].map((name) =>
      defineTool({
        name,
        description: "Ends at once.",
        input,
        plan: () => ({ title: name, asks: [] }),
        execute() {
          entered.push(name);
          return { output: `${name} ran` };
        },
      }),
    ),
  ];
}

/** Starts the parent at replicas of which the first takes its steps through `broken`, until it is killed. */
async function startTogether(
  newContents: NewContents,
  broken: (store: CallStore, stall: () => Promise<never>) => Partial<CallStore>,
  later: (store: CallStore) => Partial<CallStore> = () => ({}),
) {
  const [entered, gates]: [string[], string[]] = [[], []];
  const reached = Promise.withResolvers<void>();
  const stalled = Promise.withResolvers<never>();
  const stall = () => {
    reached.resolve();
    return stalled.promise;
  };
  let first = "";
  const tamper = (store: Store, name = ""): Store => {
    first ||= name;
    const { calls } = store;
    const replaced = name === first ? broken(calls, stall) : later(calls);
    return { ...store, calls: over(calls, replaced) };
  };
  const setting = { newContents, pace: [0], tamper };
  const replicas = await startReplicas(setting, { toolsOf: () => tools(entered, gates), onNews() {} });
  const { calls, sessions } = replicas.at(first);
  await sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  await calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId: "c1", tool: "together" }));
  await reached.promise;
  const stateOf = async (callId: string) => {
    const record = await replicas.any().store.calls.getCall("ses_a", callId);
    return record?.part.state.value;
  };
  return {
    replicas,
    entered,
    gates,
    stateOf,
    async loseFirst() {
      const killed = replicas.kill(first);
      stalled.reject(new ReplicaDied());
      await killed;
      await replicas.outliveTheDead();
    },
    /** Lets the replicas recover; returns the state of the parent. */
    async recovered() {
      await replicas.each(({ calls }) => calls.recover());
      return await stateOf("c1");
    },
  };
}

/** Returns the calls of a store with some methods replaced; the others keep their own object. */
function over(calls: CallStore, methods: Partial<CallStore>): CallStore {
  return new Proxy(calls, { get: (target, name) => Reflect.get(name in methods ? methods : target, name) });
}

/** Start marks of these calls are never written. */
const withoutStart =
  (...callIds: string[]) =>
  (store: CallStore, stall: () => Promise<never>): Partial<CallStore> => ({
    startCall: async (step) => (callIds.includes(step.fence.ref.callId) ? await stall() : await store.startCall(step)),
  });

describe.each(places)("on %s, calls of an atomic batch whose replica dies", (_, contentsOf) => {
  test("when its gate was open, but none had started: they start together at a new gate", async () => {
    const world = await startTogether(contentsOf(redis.url), withoutStart("c1.1", "c1.2"));
    await world.loseFirst();
    await expect.poll(() => world.recovered()).toMatchObject({ output: '{"opened":2}: one ran, two ran' });
    expect(world.entered.toSorted()).toEqual(["one", "two"]);
    await world.replicas.stop();
  });

  test("when one had started: the other never starts, and the batch has the results of both", async () => {
    const world = await startTogether(contentsOf(redis.url), withoutStart("c1.2"));
    await expect.poll(() => world.stateOf("c1.1")).toMatchObject({ output: "one ran" });
    await world.loseFirst();
    const output = expect.stringMatching(
      /^\{"opened":1\}: one ran, Nothing was run: the replica of its batch was lost/,
    );
    await expect.poll(() => world.recovered()).toMatchObject({ output });
    expect(await world.stateOf("c1.2")).toMatchObject({
      reason: ToolErrorReason.CANCELLED,
      effects: ToolEffects.NONE,
    });
    expect([world.entered, world.gates]).toEqual([["one"], ["open"]]);
    await world.replicas.stop();
  });

  test("and no replica resumes it: it is lost, with what the tool says about its memo", async () => {
    const unresumed = () => ({ resumeCall: async () => undefined });
    const world = await startTogether(contentsOf(redis.url), withoutStart("c1.2"), unresumed);
    await world.loseFirst();
    await world.replicas.outliveTheDead();
    await expect
      .poll(() => world.recovered())
      .toMatchObject({
        reason: ToolErrorReason.EXECUTOR_LOST,
        error: expect.stringContaining('\n\nIt had stored {"opened":1}.'),
      });
    await world.replicas.stop();
  });

  test("are not claimed while one of them has an owner: the batch waits for the end of that lease", async () => {
    let held = 2;
    const isHeld = (store: CallStore): Partial<CallStore> => ({
      async getCall(sessionId, callId) {
        const record = await store.getCall(sessionId, callId);
        return record && callId === "c1.2" && held-- > 0 ? { ...record, owner: "r0" } : record;
      },
    });
    const world = await startTogether(contentsOf(redis.url), withoutStart("c1.1", "c1.2"), isHeld);
    await world.loseFirst();
    await expect.poll(() => world.recovered()).toMatchObject({ output: '{"opened":2}: one ran, two ran' });
    expect(held).toBeLessThan(0);
    await world.replicas.stop();
  });
});
