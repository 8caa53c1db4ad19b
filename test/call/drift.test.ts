import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Store } from "../../src/call/ports.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { agent } from "../model/clients.ts";
import { startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite, type NewContents } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_1", tool: "deploy" });

/** Stores requests as versions did that knew no view. */
const withoutViews = ({ calls, ...store }: Store): Store => ({
  ...store,
  calls: {
    ...calls,
    openAsks: (step) => calls.openAsks({ ...step, asks: step.asks.map(({ view: _, ...ask }) => ask) }),
  },
});

/**
 * Has a call ask for version 1 of its tool, then replaces each replica, or the first ones, by one with another version of the tool, or
 * of the service.
 */
async function askedOver(
  newContents: NewContents,
  { version, isOld = false, replaced }: { version: string; isOld?: boolean; replaced?: number },
) {
  const entries: string[] = [];
  let served = "1";
  let tamper = isOld ? withoutViews : (store: Store) => store;
  const replicas = await startReplicas(
    { newContents, pace: [0], tamper: (store) => tamper(store) },
    {
      toolsOf: () => [deployTool(served, entries)],
      onNews() {},
    },
  );
  onTestFinished(replicas.stop);
  const [first = ""] = replicas.names();
  await replicas.at(first).sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const { record } = await replicas.at(first).calls.open(agent, request);
  const asks = () => replicas.any().store.permissions.asksOf(record.ref);
  await expect.poll(asks).toHaveLength(1);
  // Each has looked before the change.
  if (replaced !== undefined) await replicas.each(({ calls }) => calls.recover());
  served = version;
  tamper = (store) => store;
  for (const name of replicas.names().slice(0, replaced)) await replicas.kill(name);
  return { replicas, record, asks, entries };
}

function deployTool(version: string, entries: string[], name = "deploy") {
  return defineTool({
    name,
    description: "Deploys.",
    input: z.object({}),
    version,
    plan: () => ({ title: "deploy", asks: [{ permission: "deploy", patterns: ["production"] }] }),
    execute() {
      entries.push(version);
      return { output: "deployed" };
    },
  });
}

type Asked = Awaited<ReturnType<typeof askedOver>>;

async function approveLast({ replicas, asks }: Asked, { sessions, calls } = replicas.any()): Promise<void> {
  const { session } = await sessions.open(person, "ses_a", "read");
  const permissionId = (await asks()).at(-1)?.request.id ?? "";
  const answer = { sessionId: "ses_a", permissionId, reply: PermissionReply.ONCE };
  await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, answer));
}

const endOf = async ({ replicas, record }: Asked) =>
  (await replicas.any().calls.wait(record, 10_000, new AbortController().signal)).part.state;

/** Lets a replica look at what waits, and returns why the call is asked for again. */
async function askedAgain({ replicas, asks }: Asked, { calls } = replicas.any()): Promise<string | undefined> {
  await calls.recover();
  await expect.poll(async () => (await asks()).length).toBe(2);
  const [former, again] = await asks();
  expect(former?.settled?.outcome).toBe(PermissionOutcome.WITHDRAWN);
  expect(again?.settled).toBeUndefined();
  return again?.request.changed;
}

let redis: RedisServers | undefined;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis?.stop());

describe.each([
  ["SQLite", inSqlite],
  ["Redis", (...parts: Parameters<NewContents>) => inRedis(redis?.url ?? "")(...parts)],
] satisfies [string, NewContents][])("on %s", (_, newContents) => {
  test("a call that waits while its tool changes is asked for again, once, and runs as it was approved last", async () => {
    const asked = await askedOver(newContents, { version: "2" });
    expect(await askedAgain(asked)).toBe("the tool has changed since");
    await asked.replicas.each(({ calls }) => calls.recover());
    expect(await asked.asks()).toHaveLength(2);
    await approveLast(asked);
    expect(await endOf(asked)).toMatchObject({ case: "completed", value: { output: "deployed" } });
    expect(asked.entries).toEqual(["2"]);
  });

  test("a request that was stored without a view is asked again after the upgrade, whose tool is the same", async () => {
    const asked = await askedOver(newContents, { version: "1", isOld: true });
    expect(await askedAgain(asked)).toBe("Toolgate was upgraded");
    await approveLast(asked);
    expect(await endOf(asked)).toMatchObject({ case: "completed" });
    expect(asked.entries).toEqual(["1"]);
  });

  test("an answer before the first look does not run the changed tool; the call is asked for again", async () => {
    const asked = await askedOver(newContents, { version: "2" });
    await approveLast(asked);
    // Another replica could have the tool as it was: it gets a minute.
    asked.replicas.advance(61_000);
    await asked.replicas.each(({ calls }) => calls.recover());
    await asked.replicas.each(({ calls }) => calls.recover());
    await expect.poll(async () => (await asked.asks()).length).toBe(2);
    expect((await asked.asks()).at(-1)?.request.changed).toBe("the tool has changed since");
    expect(asked.entries).toEqual([]);
  });

  test("a call approved before a restart is run once by the same definition", async () => {
    const asked = await askedOver(newContents, { version: "1" });
    await approveLast(asked);
    await asked.replicas.each(({ calls }) => calls.recover());
    expect(await endOf(asked)).toMatchObject({ case: "completed", value: { output: "deployed" } });
    expect(asked.entries).toEqual(["1"]);
  });
});

test("on Redis, replicas that do not know a changed tool yet leave its request open, and an answer there counts", async () => {
  const asked = await askedOver(inRedis(redis?.url ?? ""), { version: "2", replaced: 1 });
  const [one = "", other = "", changed = ""] = asked.replicas.names();
  await asked.replicas.at(changed).calls.recover();
  // The store checks a tree again after a while.
  asked.replicas.advance(10_000);
  expect(await askedAgain(asked, asked.replicas.at(changed))).toBe("the tool has changed since");
  for (const name of [one, other]) {
    const { calls, registry } = asked.replicas.at(name);
    registry.register({ other: deployTool("1", asked.entries, "other") });
    await calls.recover();
  }
  expect(await asked.asks()).toMatchObject([{ settled: { outcome: PermissionOutcome.WITHDRAWN } }, {}]);
  await approveLast(asked, asked.replicas.at(one));
  await asked.replicas.each(({ calls }) => calls.recover());
  expect(await endOf(asked)).toMatchObject({ case: "completed", value: { output: "deployed" } });
  expect(asked.entries).toEqual(["2"]);
});
