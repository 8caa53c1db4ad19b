import { Code } from "@connectrpc/connect";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { openStore } from "../../src/compose/store.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { echo } from "../../src/tools/echo.ts";
import { refusal } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { serve } from "./server.ts";

const limits = { events: 10, bytes: 16 * 1024 * 1024 };
let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

const stores: Record<string, typeof openStore> = {
  SQLite: ({ dataDirectory: directory }, log) => openSqliteStore({ directory, log, limits }),
  Redis: (_, log) => openRedisStore({ url: redis.url, log, limits }),
};

test.each(Object.entries(stores))(
  "on %s a watcher from before the trimmed log gets the numbers that are stored, and can take the snapshot",
  async (_name, open) => {
    const { agent } = await serve([echo], { open });
    const { session } = await agent.sessions.createSession({});
    const sessionId = session?.id ?? "";
    for (let i = 0; i < 5; i++)
      await agent.tools.callTool({ sessionId, callId: `c${i}`, tool: "echo", input: { text: `${i}` } });
    const refused = await refusal(read(agent.tools.watchSession({ sessionId, afterSeq: 1n })).end());
    expect(refused).toMatchObject({ code: Code.OutOfRange, reason: "HISTORY_TRIMMED" });
    const [first, last] = [Number(refused.metadata?.first_seq), Number(refused.metadata?.last_seq)];
    expect({ first: first > 2, last }).toEqual({ first: true, last: 15 });

    const kept = read(agent.tools.watchSession({ sessionId, afterSeq: BigInt(first - 1) }));
    expect((await kept.find(() => true)).seq).toBe(BigInt(first));

    const call = { sessionId, callId: "late", tool: "echo", input: { text: "late" } };
    const snapshot = agent.tools.watchSession({ sessionId, snapshot: true })[Symbol.asyncIterator]();
    const mark = await snapshot.next();
    expect(mark.value).toMatchObject({ snapshotEnd: true, lastSeq: BigInt(last) });
    await agent.tools.callTool(call);
    const after = read({ [Symbol.asyncIterator]: () => snapshot });
    expect(await after.until("part")).toMatchObject({ callId: "late" });
  },
);
