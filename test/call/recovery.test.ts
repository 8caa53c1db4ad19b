import { setImmediate as turn } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { CallStore, Store } from "../../src/call/ports.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { agent } from "../model/clients.ts";
import { type Replicas, startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
const never = new AbortController().signal;

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

// TOOLGATE_LONG=1 also opens 5,000 asks, which takes a minute on each store; the store contract always does.
const counts = process.env.TOOLGATE_LONG === "1" ? [150, 5_000] : [150];
const places: [string, (url: string) => NewContents][] = [
  ["SQLite, restarted", () => inSqlite],
  ["Redis, each replica replaced", inRedis],
];

describe.each(places.flatMap(([name, contentsOf]) => counts.map((count) => ({ name, contentsOf, count }))))(
  "on $name, with $count open asks",
  ({ contentsOf, count }) => {
    const sessions = Array.from({ length: Math.ceil(count / 500) }, (_, index) => `ses_${index}`);
    const sessionOf = (index: number) => sessions[index % sessions.length] ?? "";

    /** Starts replicas, opens calls that ask, and replaces every replica by a new one in order. */
    async function replaced(tamper?: (ports: Store) => Store): Promise<Replicas> {
      const toolsOf = () => [
        defineTool({
          name: "deploy",
          description: "Deploys.",
          input: z.object({ index: z.number() }),
          plan: ({ index }) => ({ title: "deploy", asks: [{ permission: "deploy", patterns: [`place ${index}`] }] }),
          execute: ({ index }) => ({ output: `deployed ${index}` }),
        }),
      ];
      const setting = { newContents: contentsOf(redis.url), pace: [0], tamper };
      const replicas = await startReplicas(setting, { toolsOf, onNews() {} });
      const [first = "", ...others] = replicas.names();
      for (const id of sessions)
        await replicas.at(first).sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: id }));
      for (let index = 0; index < count; index++) {
        const call = { sessionId: sessionOf(index), callId: `call_${index}`, tool: "deploy", input: { index } };
        await replicas.at(first).calls.open(agent, create(CallToolRequestSchema, call));
      }
      await expect.poll(() => openAsks(replicas), { timeout: 120_000 }).toBe(count);
      for (const name of [first, ...others]) {
        await replicas.at(name).calls.drain(0);
        await replicas.kill(name);
      }
      return replicas;
    }

    async function openAsks(replicas: Replicas): Promise<number> {
      return (await replicas.any().store.permissions.openAsks({ limit: count + 1 })).length;
    }

    async function approve(replicas: Replicas, index: number): Promise<void> {
      const { calls, sessions, store } = replicas.any();
      const { session } = await sessions.open(person, sessionOf(index), "read");
      const { record } = await calls.getRecord(agent, sessionOf(index), `call_${index}`, "read");
      const [ask] = await store.permissions.asksOf(record.ref);
      const answer = { sessionId: session.id, permissionId: ask?.request.id ?? "", reply: PermissionReply.ONCE };
      await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, answer));
      // Until the next turn the call counts as being claimed, and recovery leaves it.
      await turn();
    }

    /** Returns the state once the call has ended, or after a time: an answer may start its call in the step after it. */
    async function outcome(replicas: Replicas, index: number, ms = 10_000) {
      const { calls } = replicas.any();
      const { record } = await calls.getRecord(agent, sessionOf(index), `call_${index}`, "read");
      const { part } = await calls.wait(record, ms, never);
      return part.state;
    }

    /** A replica that settles asks, and dies before it claims the calls. */
    const neverClaims = (ports: Store): Store => ({
      ...ports,
      permissions: {
        ...ports.permissions,
        async settle(settlement) {
          const calls = settlement.calls.map(({ start: _, ...call }) => call);
          const { unclaimed: _, ...result } = {
            unclaimed: [],
            ...(await ports.permissions.settle({ ...settlement, calls })),
          };
          return result;
        },
      },
    });

    test("an answered call starts at once", async () => {
      const replicas = await replaced();
      await approve(replicas, count - 1);
      expect(await outcome(replicas, count - 1)).toMatchObject({ case: "completed" });
      await replicas.stop();
    }, 240_000);

    test("an answered call that nobody claimed starts in the first round of recovery", async () => {
      const replicas = await replaced(neverClaims);
      await approve(replicas, count - 1);
      expect(await outcome(replicas, count - 1, 0)).toMatchObject({ case: "pending" });
      await replicas.any().calls.recover();
      expect(await outcome(replicas, count - 1)).toMatchObject({
        case: "completed",
        value: { output: `deployed ${count - 1}` },
      });
      await replicas.stop();
    }, 240_000);

    test("one call that cannot be claimed keeps no other answered call from starting", async () => {
      const broken = (calls: CallStore): CallStore => ({
        ...calls,
        get storeId() {
          return calls.storeId;
        },
        claimCall: (ref, ...rest) =>
          ref.callId === "call_0" ? Promise.reject(new Error("this call is broken")) : calls.claimCall(ref, ...rest),
      });
      const replicas = await replaced((ports) => ({ ...neverClaims(ports), calls: broken(ports.calls) }));
      for (const index of [0, 1, 2]) await approve(replicas, index);
      await expect(replicas.any().calls.recover()).rejects.toThrow("this call is broken");
      expect(await outcome(replicas, 0, 0)).toMatchObject({ case: "pending" });
      for (const index of [1, 2]) expect(await outcome(replicas, index)).toMatchObject({ case: "completed" });
      await replicas.stop();
    }, 240_000);
  },
);
