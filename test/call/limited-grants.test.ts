import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallStore } from "../../src/call/ports.ts";
import { openStore } from "../../src/compose/store.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { refusal } from "../e2e/clients.ts";
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

type Service = Awaited<ReturnType<typeof serve>>;

/** Opens the store with another step in the place of the start mark, and counts the uses of wider grants. */
function openThrough(through: (start: CallStore["startCall"]) => CallStore["startCall"], taken: string[] = []) {
  const open: typeof openStore = async (config, log) => {
    const opened = await openStore(config, log);
    const { takeGrant } = opened.permissions;
    const calls = { ...opened.calls, startCall: through(opened.calls.startCall) };
    const permissions = {
      ...opened.permissions,
      takeGrant: (...given: Parameters<typeof takeGrant>) => {
        taken.push(given[0].callId);
        return takeGrant(...given);
      },
    };
    return { ...opened, calls, permissions };
  };
  return open;
}

function begin({ agent }: Service, sessionId: string, callId: string = randomUUID()) {
  return read(agent.tools.executeTool({ sessionId, callId, tool: "probe", input: { knock: callId } }));
}

/** Makes a call, answers it with always for so many more calls, and returns the id of the grant. */
async function grantFor(service: Service, sessionId: string, scope: GrantScope, times: number): Promise<string> {
  const stream = begin(service, sessionId);
  const { id: permissionId, offers } = await stream.until("permissionAsked");
  const offerId = offers.find((offer) => offer.scope === scope)?.id ?? "none";
  const answer = { sessionId, permissionId, reply: Reply.ALWAYS, offerId, times };
  await service.person.permissions.respondToPermission(answer);
  const { grantId } = await stream.until("permissionSettled");
  expect((await stream.end()).state.case).toBe("completed");
  return grantId;
}

/** Makes a call: "ran", or "asked" with nothing run. What asks is cancelled. */
async function outcomeOf(service: Service, sessionId: string, callId: string = randomUUID()) {
  const { event } = await begin(service, sessionId, callId).find(
    ({ event }) =>
      event.case === "permissionAsked" || (event.case === "part" && event.value.state.case === "completed"),
  );
  if (event.case === "part") return "ran";
  const { part } = await service.agent.tools.cancelTool({ sessionId, callId });
  expect(part?.state.case).not.toBe("completed");
  return "asked";
}

async function grantNow({ person }: Service, grantId: string) {
  const { grants } = await person.permissions.listGrants({ includeDead: true });
  return grants.find(({ id }) => id === grantId);
}

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

describe.each(["SQLite", "Redis"])("a grant with a limit, on %s", (kind) => {
  const storeOf = () => (kind === "Redis" ? { store: redis.url } : {});

  test.each([
    { scope: GrantScope.SESSION, where: "in a session" },
    { scope: GrantScope.PROJECT, where: "in all sessions of the workspace" },
  ])("covers five of 20 racing calls $where, and each other one asks", async ({ scope }) => {
    const here = await serve([probe], storeOf());
    const there = kind === "Redis" ? await serve([probe], storeOf()) : here;
    const sessions = ["a", "b", "c", "d"].map((name) => `ses_${name}${randomUUID().slice(0, 8)}`);
    for (const sessionId of sessions) await here.agent.sessions.createSession({ sessionId });
    const [first = ""] = sessions;
    const grantId = await grantFor(here, first, scope, 5);
    expect(await grantNow(here, grantId)).toMatchObject({ times: 5, left: 5 });
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        outcomeOf(i % 2 === 0 ? here : there, scope === GrantScope.SESSION ? first : (sessions[i % 4] ?? first)),
      ),
    );
    expect(outcomes.filter((outcome) => outcome === "ran")).toHaveLength(5);
    expect(await grantNow(here, grantId)).toMatchObject({ times: 5, left: 0 });
    expect((await here.person.permissions.listGrants({})).grants.some(({ id }) => id === grantId)).toBe(false);
  });

  test("counts no call that attaches, is cancelled while it asks, or was planned only", async () => {
    const service = await serve([probe], storeOf());
    const sessionId = `ses_${randomUUID().slice(0, 8)}`;
    await service.agent.sessions.createSession({ sessionId });
    const waiting = begin(service, sessionId, "waiting");
    await waiting.until("permissionAsked");
    await service.agent.tools.cancelTool({ sessionId, callId: "waiting" });
    const grantId = await grantFor(service, sessionId, GrantScope.SESSION, 2);
    const input = { knock: "planned" };
    await service.agent.tools.planTool({ sessionId, tool: "probe", input });
    expect(await grantNow(service, grantId)).toMatchObject({ left: 2 });
    for (const callId of ["one", "one", "one"]) expect(await outcomeOf(service, sessionId, callId)).toBe("ran");
    expect(await grantNow(service, grantId)).toMatchObject({ left: 1 });
    expect(await outcomeOf(service, sessionId, "two")).toBe("ran");
    expect(await outcomeOf(service, sessionId, "three")).toBe("asked");
  });

  test("asks for more than are offered, or for a limit without always, are refused and save nothing", async () => {
    const service = await serve([probe], {
      ...storeOf(),
      toml: '[[approval]]\npermission = "probe"\ntimes = 3\n',
    });
    const sessionId = `ses_${randomUUID().slice(0, 8)}`;
    await service.agent.sessions.createSession({ sessionId });
    const stream = begin(service, sessionId);
    const { id: permissionId, offers } = await stream.until("permissionAsked");
    expect(offers.map(({ times }) => times)).toEqual(offers.map(() => 3));
    expect(offers[0]?.text).toContain("at most 3 more times");
    const answer = (reply: Reply, times: number) =>
      refusal(service.person.permissions.respondToPermission({ sessionId, permissionId, reply, times }));
    expect(await answer(Reply.ALWAYS, 4)).toMatchObject({ reason: "INVALID_MESSAGE" });
    expect(await answer(Reply.ALWAYS, 1001)).toMatchObject({ reason: "INVALID_MESSAGE" });
    expect(await answer(Reply.ONCE, 1)).toMatchObject({ reason: "INVALID_MESSAGE" });
    expect((await service.person.permissions.listGrants({ sessionId })).grants).toEqual([]);
    await service.person.permissions.respondToPermission({ sessionId, permissionId, reply: Reply.ALWAYS, times: 1 });
    const { grantId } = await stream.until("permissionSettled");
    await stream.end();
    const saved = await grantNow(service, grantId);
    expect(saved).toMatchObject({ times: 1, left: 1 });
    expect(saved?.text).toMatch(/, at most once more$/);
    expect(await outcomeOf(service, sessionId)).toBe("ran");
    expect(await outcomeOf(service, sessionId)).toBe("asked");
  });
});

test("a grant without a limit costs no step and no field more", async () => {
  const taken: string[] = [];
  const counted: unknown[] = [];
  const open = openThrough(
    (start) => (step) => {
      counted.push(step.counted);
      return start(step);
    },
    taken,
  );
  const service = await serve([probe], { open });
  const sessionId = `ses_${randomUUID().slice(0, 8)}`;
  await service.agent.sessions.createSession({ sessionId });
  await grantFor(service, sessionId, GrantScope.PROJECT, 0);
  for (let i = 0; i < 3; i++) expect(await outcomeOf(service, sessionId)).toBe("ran");
  expect(taken).toEqual([]);
  expect(counted).toEqual([undefined, undefined, undefined]);
});

test("a call that took the last use of a wide grant keeps it when its start mark has to be written again", async () => {
  let isFirst = true;
  const taken: string[] = [];
  const open = openThrough(
    (start) => async (step) => {
      if (step.grantIds?.length && isFirst) {
        isFirst = false;
        return "retry";
      }
      return await start(step);
    },
    taken,
  );
  const service = await serve([probe], { open });
  const sessionId = `ses_${randomUUID().slice(0, 8)}`;
  await service.agent.sessions.createSession({ sessionId });
  const grantId = await grantFor(service, sessionId, GrantScope.PROJECT, 1);
  expect(await outcomeOf(service, sessionId, "one")).toBe("ran");
  expect(taken).toEqual(["one", "one"]);
  expect(await grantNow(service, grantId)).toMatchObject({ left: 0 });
  expect(await outcomeOf(service, sessionId, "two")).toBe("asked");
});
