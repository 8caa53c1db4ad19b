import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { type Replicas, startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const call = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_1", tool: "look" });
const never = new AbortController().signal;

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

describe.each<[string, (url: string) => NewContents]>([
  ["SQLite", () => inSqlite],
  ["Redis", inRedis],
])("on %s", (_, contentsOf) => {
  /** Starts replicas with a tool whose body hangs until its replica dies, except at the `lastEntry`th entry. */
  async function started(
    lastEntry: number,
    { idempotent = true, asksAgain = false } = {},
  ): Promise<{ replicas: Replicas; entries: string[] }> {
    const entries: string[] = [];
    let entered = Promise.withResolvers<void>();
    const toolsOf = (gone: AbortSignal): DefinedTool[] => [
      defineTool({
        name: "look",
        description: "Looks.",
        input: z.object({}),
        idempotent,
        plan: () => ({
          title: "look",
          asks: asksAgain && entries.length > 0 ? [{ permission: "look", patterns: ["again"] }] : [],
        }),
        async execute(_input, { output }) {
          entries.push("entered");
          await output(Buffer.from(`look ${entries.length}`));
          entered.resolve();
          if (entries.length < lastEntry) await new Promise((_, reject) => gone.addEventListener("abort", reject));
          return {};
        },
      }),
    ];
    const replicas = await startReplicas({ newContents: contentsOf(redis.url), pace: [0] }, { toolsOf, onNews() {} });
    await replicas.any().sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
    let [at = ""] = replicas.names();
    await replicas.at(at).calls.open(agent, call);
    for (let deaths = 1; deaths < lastEntry; deaths++) {
      await entered.promise;
      entered = Promise.withResolvers();
      await replicas.kill(at);
      await replicas.outliveTheDead();
      await replicas.each(({ calls }) => calls.recover());
      const { record } = await replicas.any().calls.getRecord(agent, "ses_a", "call_1", "read");
      at = record.owner;
    }
    return { replicas, entries };
  }

  test("an idempotent call is run again when its replica dies, three times in all, and has the output of the last run", async () => {
    const { replicas, entries } = await started(3);
    const replica = replicas.any();
    const { record } = await replica.calls.getRecord(agent, "ses_a", "call_1", "read");
    const { part } = await replica.calls.wait(record, 10_000, never);
    expect(part.state).toMatchObject({ case: "completed", value: { output: "look 3" } });
    expect(entries).toHaveLength(3);
    await replicas.stop();
  });

  test("an idempotent call is lost after the third death", async () => {
    const { replicas, entries } = await started(4);
    const { record } = await replicas.any().calls.getRecord(agent, "ses_a", "call_1", "read");
    expect(record.part.state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST } });
    expect(entries).toHaveLength(3);
    await replicas.stop();
  });

  test("an idempotent call that would have to ask before its next run is lost, and asks nobody", async () => {
    const { replicas, entries } = await started(2, { asksAgain: true });
    const { calls, store } = replicas.any();
    const { record } = await calls.getRecord(agent, "ses_a", "call_1", "read");
    const { part } = await calls.wait(record, 10_000, never);
    expect(part.state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST } });
    expect(await store.permissions.asksOf(record.ref)).toEqual([]);
    expect(entries).toHaveLength(1);
    await replicas.stop();
  });

  test("any other call is lost at the first death", async () => {
    const { replicas, entries } = await started(2, { idempotent: false });
    const { record } = await replicas.any().calls.getRecord(agent, "ses_a", "call_1", "read");
    expect(record.part.state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST } });
    expect(entries).toHaveLength(1);
    await replicas.stop();
  });
});
