import { create } from "@bufbuild/protobuf";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import { NotEntered } from "../../src/tool/errors.ts";
import { assignmentOf, callOfAssignment, type RemoteMark, type Reservation } from "../../src/tool/remote.ts";
import type { DefinedTool, ToolContext, ToolResult } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { type Replicas, startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { seed } from "../seed.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

// TOOLGATE_LONG=1 makes 2,500 runs on each store.
const runsOf = (numRuns: number) => ({ seed, numRuns: process.env.TOOLGATE_LONG === "1" ? 2_500 : numRuns });
const timeout = process.env.TOOLGATE_LONG === "1" ? 3_600_000 : 600_000;
const sessionId = "ses_a";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** A worker process that keeps the bodies that it has entered, with their results, over all of its connections. */
function createKeeper(replicas: () => Replicas, forgets: boolean) {
  const held = new Map<string, PromiseWithResolvers<ToolResult>>();
  const entered: string[] = [];
  const process = { principal: "ci", instance: "wrk_1", resumeMs: 1_000_000_000 };
  let [at, connection, count] = ["", 0, 0];
  const markOf = (assignment: string): RemoteMark => ({ ...process, connection, assignment });

  async function run({ callId, remote, signal }: ToolContext, gone: AbortSignal): Promise<ToolResult> {
    if (!remote) throw new Error("the body got no worker");
    const { assignment } = remote.mark;
    if (!remote.isAdopted) {
      // The start was sent over a connection that is not read any more.
      if (remote.mark.connection !== connection) throw new NotEntered("the line was cut");
      entered.push(callId);
      held.set(assignment, Promise.withResolvers());
    }
    const { promise, reject } = Promise.withResolvers<never>();
    const stop = AbortSignal.any([signal, gone]);
    stop.addEventListener("abort", () => reject(stop.reason), { once: true });
    if (stop.aborted) reject(stop.reason);
    return await Promise.race([promise, held.get(assignment)?.promise ?? promise]);
  }

  return {
    entered,
    held,
    at: () => at,
    tool: (replica: string, gone: AbortSignal): DefinedTool =>
      defineTool({
        name: "deploy",
        description: "Deploys.",
        input: z.object({}),
        timeoutMs: 1_000_000_000,
        plan: () => ({ title: "deploy", asks: [] }),
        remote: {
          queueMs: 1_000_000_000,
          reserve: (call) => {
            if (at !== replica) return undefined;
            const mark = markOf(assignmentOf(`${count++}`.padStart(22, "0"), call));
            return { mark, worker: "ci", buildId: "", free() {} } as Reservation;
          },
          isPaused: () => false,
          unavailable: async () => "no worker runs",
        },
        execute: (_input, { plan: _plan, ...ctx }) => run(ctx, gone),
      }),
    /** Connects to a replica with what it holds. */
    async connect(replica: string): Promise<void> {
      connection += 1;
      at = replica;
      const { calls } = replicas().at(replica);
      for (const assignment of held.keys()) {
        const call = callOfAssignment(assignment);
        if (call && !forgets && (await calls.adopt(call, markOf(assignment))) === "ended") held.delete(assignment);
      }
      calls.takeQueued();
    },
    /** Answers a replica that asks for the body of a call without a run. */
    async probe(replica: string, { assignment, connection: started }: RemoteMark): Promise<void> {
      const call = callOfAssignment(assignment);
      if (at !== replica || connection < started || !call) return;
      const { calls } = replicas().at(replica);
      if (held.has(assignment) && !forgets) await calls.adopt(call, markOf(assignment));
      else await calls.restartUnentered(call, markOf(assignment));
    },
    finish(which: number): void {
      const [assignment = "", body] = [...held][which % Math.max(1, held.size)] ?? [];
      body?.resolve({ output: `result of ${callOfAssignment(assignment)?.callId}` });
    },
  };
}

type Step = readonly [act: "open" | "connect" | "kill" | "recover" | "finish" | "cancel", which: number];
const acts = ["open", "open", "open", "connect", "connect", "kill", "recover", "finish", "finish", "cancel"] as const;
const race: fc.Arbitrary<Step[]> = fc.array(fc.tuple(fc.constantFrom(...acts), fc.nat({ max: 59 })), {
  minLength: 1,
  maxLength: 3,
});
const turns = fc.oneof({ weight: 4, arbitrary: fc.nat({ max: 4 }) }, { weight: 1, arbitrary: fc.nat({ max: 40 }) });

/** Property: in each order of events every call ends once, with the result of its only run or since it was cancelled. */
function anyOrder(newContents: NewContents, forgets = false) {
  const pace = fc.array(turns, { minLength: 1, maxLength: 20 });
  return fc.asyncProperty(fc.array(race, { minLength: 3, maxLength: 12 }), pace, async (races, pace) => {
    const names = new Map<DefinedTool, string>();
    const worker = createKeeper(() => replicas, forgets);
    const replicas: Replicas = await startReplicas(
      { newContents, pace },
      {
        toolsOf(gone, name) {
          const tool = worker.tool(name, gone);
          names.set(tool, name);
          return [tool];
        },
        remoteToolsOf: ([tool]) => ({
          find: () => tool && boundTool(tool),
          isServed: async () => true,
          onOrphan: (_ref, mark) => void worker.probe((tool && names.get(tool)) ?? "", mark).catch(() => {}),
        }),
        onNews() {},
      },
    );
    try {
      await replicas.any().sessions.create(agent, create(CreateSessionRequestSchema, { sessionId }));
      const opened = new Set<string>();
      const cancelled = new Set<string>();
      const slow: Promise<unknown>[] = [];
      const pick = (which: number) => replicas.names()[which % replicas.names().length] ?? "";
      const take = async ([act, which]: Step): Promise<unknown> => {
        const { calls } = replicas.at(pick(which));
        const callId = `call_${act === "open" ? opened.size : which % Math.max(1, opened.size)}`;
        switch (act) {
          case "open":
            opened.add(callId);
            return await calls.open(
              agent,
              create(CallToolRequestSchema, { sessionId, callId, tool: "deploy", input: {} }),
            );
          case "connect":
            return await worker.connect(pick(which));
          case "kill":
            await replicas.kill(pick(which));
            return replicas.names().includes(worker.at()) ? undefined : await worker.connect(pick(which));
          case "recover":
            return await replicas.each((each) => each.calls.recover());
          case "finish":
            return worker.finish(which);
          case "cancel":
            cancelled.add(callId);
            return void slow.push(calls.cancel(agent, sessionId, callId, "").catch(() => {}));
        }
      };
      for (const steps of races) await Promise.allSettled(steps.map(take));
      const records = async () => await replicas.any().store.calls.listCalls({ sessionId, limit: 1_000 });
      for (let round = 0; (await records()).some(({ part }) => !isTerminal(part)); round++) {
        if (round === 200) throw new Error("a call does not come to its end");
        if (round % 20 === 0) await worker.connect(replicas.names()[0] ?? "");
        if (round % 20 === 5) await replicas.outliveTheDead();
        await replicas.each(({ calls }) => calls.recover());
        await replicas.each(({ calls }) => calls.handleCancels());
        for (let which = 0; which < worker.held.size; which++) worker.finish(which);
        await new Promise((resolve) => setTimeout(resolve, round > 20 ? 10 : 1));
      }
      await Promise.all(slow);
      expect(worker.entered.toSorted()).toEqual([...new Set(worker.entered)].toSorted());
      for (const { ref, part } of await records()) {
        const isCancelled = part.state.case === "error" && part.state.value.reason === ToolErrorReason.CANCELLED;
        if (isCancelled && cancelled.has(ref.callId)) continue;
        expect(part.state).toMatchObject({ case: "completed", value: { output: `result of ${ref.callId}` } });
        expect(worker.entered).toContain(ref.callId);
      }
      const { events } = await replicas.any().store.calls.readLog(sessionId, 0, 16 * 1024 * 1024);
      const ends = events.flatMap(({ event }) =>
        event.case === "part" && isTerminal(event.value) ? [event.value.callId] : [],
      );
      expect(ends.toSorted()).toEqual((await records()).map(({ ref }) => ref.callId).toSorted());
      expect(replicas.errors).toEqual([]);
    } finally {
      await replicas.stop();
    }
  });
}

test("calls of a worker run once and end once on SQLite", () => fc.assert(anyOrder(inSqlite), runsOf(60)), timeout);

test(
  "calls of a worker run once and end once at three replicas on Redis",
  () => fc.assert(anyOrder(inRedis(redis.url)), runsOf(60)),
  timeout,
);

test(
  "a worker that forgets what it has entered is noticed",
  async () => {
    const { failed } = await fc.check(anyOrder(inSqlite, true), { seed, numRuns: 200, endOnFailure: true });
    expect(failed).toBe(true);
  },
  timeout,
);
