import { setTimeout as delay } from "node:timers/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  DecisionKind,
  PermissionAction,
  PermissionOutcome,
  type Person,
  PersonSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type Delegate,
  PersonRecordSchema,
  PutDelegateRequestSchema,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, PermissionResponseSchema, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Settlement } from "../../src/approval/ports.ts";
import type { Store } from "../../src/call/ports.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { createDelegates } from "../../src/people/delegates.ts";
import type { ApprovalRule } from "../../src/policy/approval-rules.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import type { ToolContext } from "../../src/tool/tool.ts";
import { needWords } from "../../src/view/need.ts";
import { agent } from "../model/clients.ts";
import { type Setting, startReplicas } from "../model/replicas.ts";
import { inRedis, inSqlite } from "../model/stores.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
/** An approver who is a person of these groups; the credential may be another one of the same person. */
const approver = (name: string, groups: string[] = ["sre"], id = name): Principal => ({
  ...{ ...person, id, lineage: [id] },
  identity: {
    person: create(PersonSchema, { id: `prs_${name}`, issuer: "local", subject: name, name, groups }),
    method: AnswerMethod.SESSION,
  },
});
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
  { behind, client, ...setting }: Partial<Setting> & { behind?: Person | undefined; client?: string } = {},
  plan: (count: number) => Promise<string> = async () => "production",
  body: (ctx: Pick<ToolContext, "ask">) => Promise<void> = async () => {},
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
          input: z.object({ to: z.string().optional() }),
          plan: async () => ({
            title: "deploy",
            asks: [{ permission: "deploy", patterns: [await plan(counted())] }],
          }),
          async execute(_, ctx) {
            entered.push(replica);
            await body(ctx);
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
  const request = create(CallToolRequestSchema, {
    ...{ sessionId: "ses_a", callId: "call_1", tool: "deploy" },
    ...(client !== undefined && { metadata: { mcp: { client } } }),
  });
  const { record } = await calls.open({ ...agent, behind }, request);
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
    async answer(
      at: string,
      permissionId: string,
      reply: PermissionReply = PermissionReply.ONCE,
      { by = person, ...fields }: MessageInitShape<typeof PermissionResponseSchema> & { by?: Principal } = {},
    ): Promise<void> {
      const { calls, sessions } = replicas.at(at);
      const { session } = await sessions.open(by, "ses_a", "read");
      const response = { ...fields, sessionId: "ses_a", permissionId, reply };
      await calls.answer(by, workspaceRoot(session.workspace), create(PermissionResponseSchema, response));
    },
    asks: async () => await store.permissions.asksOf(record.ref),
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

/** An entry of `[[approval]]` for what the tool asks. */
const entry = (fields: Partial<ApprovalRule> = {}): ApprovalRule => ({
  ...{
    permission: "deploy",
    pattern: "production",
    action: PermissionAction.ASK,
    risks: [],
    agent: "*",
    workspace: "*",
  },
  ...{ all: [{ approve: 2, from: ["sre"] }], reject: 1, always: true },
  ...{ reasonRequired: false, shownRequired: false, method: 0, otherPerson: false, escalate: [], ...fields },
});
const deciding = (...rules: ApprovalRule[]) => ({ approvals: { rules, groups: [] } });
const { ONCE, ALWAYS } = PermissionReply;
const twoOfAny = [{ approve: 2, from: [] }];
const oneOfAny = [{ approve: 1, from: [] }];

test("of a request that needs two of a group, the second vote starts the call in its own step", async () => {
  const { answer, asks, openAsk, end, entered, steps, replicas } = await waiting(deciding(entry()));
  const ask = await openAsk();
  await answer("r1", ask, ONCE, { by: approver("ann"), reason: "planned" });
  expect((await asks())[0]).toMatchObject({
    request: {
      need: { all: [{ approve: 2, from: ["sre"] }] },
      votes: [{ person: { name: "ann" }, reason: "planned" }],
    },
  });
  expect([await openAsk(), entered]).toEqual([ask, []]);
  // The same vote again is the same vote.
  await answer("r2", ask, ONCE, { by: approver("ann"), reason: "planned" });
  await answer("r3", ask, ONCE, { by: approver("bob") });
  expect(await end()).toMatchObject({ case: "completed" });
  expect([entered, steps]).toEqual([["r3"], ["r1 settle", "r3 settle with start"]]);
  await answer("r2", ask, ONCE, { by: approver("ann"), reason: "planned" });
  const [asked] = await asks();
  expect(asked?.settled?.votes.map((vote) => vote.person?.name)).toEqual(["ann", "bob"]);
  const { store } = replicas.at("r1");
  const chain = await store.permissions.listDecisions({ root: "ses_a", afterSeq: 0, limit: 10 });
  expect(chain.map(({ record }) => [record?.kind, record?.person?.name ?? ""])).toEqual([
    [DecisionKind.ASKED, ""],
    [DecisionKind.VOTED, "ann"],
    [DecisionKind.SETTLED, "bob"],
    [DecisionKind.ALLOWED, ""],
  ]);
});

test("with entries for other requests, an answer takes the steps, the records and the bytes that it takes without", async () => {
  const taken = await Promise.all(
    [{}, deciding(entry({ pattern: "staging" }))].map(async (setting) => {
      const settlements: Settlement[] = [];
      const { answer, openAsk, end, steps } = await waiting({
        ...setting,
        tamper: (ports) => ({
          ...ports,
          permissions: over(ports.permissions, {
            async settle(settlement) {
              settlements.push(settlement);
              return await ports.permissions.settle(settlement);
            },
          }),
        }),
      });
      await answer("r2", await openAsk());
      await end();
      const [{ settled = [], decisions = [], ...step } = {}] = settlements;
      return [
        steps,
        Object.keys(step).toSorted(),
        settled.map(({ votes }) => votes),
        decisions.map(({ kind }) => kind),
      ];
    }),
  );
  expect(taken[1]).toEqual(taken[0]);
  expect(taken[0]?.[0]).toEqual(["r2 settle with start"]);
});

test("a request without steps takes no step for them, and asks nothing of the store but what is due", async () => {
  const looks: string[] = [];
  const { openAsk, answer, end, replicas } = await waiting({
    ...deciding(entry({ all: oneOfAny })),
    tamper: (ports) => ({
      ...ports,
      permissions: new Proxy(ports.permissions, {
        get(target, name) {
          looks.push(String(name));
          return Reflect.get(target, name);
        },
      }),
    }),
  });
  const ask = await openAsk();
  looks.length = 0;
  await replicas.at("r2").calls.recover();
  expect(looks.filter((name) => name === "escalate")).toEqual([]);
  await answer("r1", ask, ONCE, { by: approver("ann") });
  expect(await end()).toMatchObject({ case: "completed" });
  expect(looks).not.toContain("escalate");
});

test.each([
  ["a person of another group", entry(), approver("eve", ["dev"]), ONCE, ErrorReason.NOT_ELIGIBLE],
  ["the person behind the agent", entry({ otherPerson: true }), approver("mia"), ONCE, ErrorReason.NOT_ELIGIBLE],
  ["a token of no person", entry({ all: twoOfAny }), person, ONCE, ErrorReason.NOT_ELIGIBLE],
  ["a token where a sign-in is wanted", entry({ method: 4, all: oneOfAny }), person, ONCE, ErrorReason.METHOD_TOO_WEAK],
  ["a sign-in that is not fresh", entry({ method: 5 }), approver("ann"), ONCE, ErrorReason.METHOD_TOO_WEAK],
  ["no reason", entry({ reasonRequired: true }), approver("ann"), ONCE, ErrorReason.REASON_MISSING],
  ["nothing shown", entry({ shownRequired: true }), approver("ann"), ONCE, ErrorReason.NOT_SHOWN],
  ["a saved approval", entry({ always: false }), approver("ann"), ALWAYS, ErrorReason.NO_OFFER],
])("%s is no vote, and may still reject", async (_, rule, by, reply, reason) => {
  const { answer, asks, openAsk, end } = await waiting({ ...deciding(rule), behind: approver("mia").identity?.person });
  const ask = await openAsk();
  await expect(answer("r1", ask, reply, { by, reason: " " })).rejects.toMatchObject({ reason });
  expect((await asks())[0]?.request.votes).toEqual([]);
  await answer("r2", ask, PermissionReply.REJECT, { by });
  expect(await end()).toMatchObject({ case: "error", value: { reason: ToolErrorReason.REJECTED } });
});

test("a person has one vote, whatever credentials they use, and may change it until the request is settled", async () => {
  const { answer, asks, openAsk, entered, end } = await waiting(deciding(entry({ all: twoOfAny, reject: 2 })));
  const ask = await openAsk();
  await answer("r1", ask, ONCE, { by: approver("ann") });
  await answer("r2", ask, ONCE, { by: approver("ann", [], "phone of ann") });
  expect((await asks())[0]?.request.votes).toMatchObject([{ by: "phone of ann" }]);
  await answer("r2", ask, PermissionReply.REJECT, { by: approver("ann") });
  await answer("r1", ask, ONCE, { by: approver("bob") });
  expect((await asks())[0]?.request.votes.map(({ outcome }) => outcome)).toEqual([
    PermissionOutcome.REJECT,
    PermissionOutcome.ONCE,
  ]);
  expect([await openAsk(), entered]).toEqual([ask, []]);
  await answer("r3", ask, PermissionReply.REJECT, { by: approver("carol", []), message: "not now" });
  expect(await end()).toMatchObject({ case: "error", value: { error: expect.stringContaining("not now") } });
  expect((await asks())[0]?.settled?.votes).toHaveLength(3);
});

test("persons who answer through one channel have a vote each", async () => {
  const { answer, asks, openAsk, end } = await waiting(deciding(entry()));
  const ask = await openAsk();
  const through = (name: string) => approver(name, ["sre"], "channel:ops");
  await answer("r1", ask, ONCE, { by: through("ann") });
  await answer("r1", ask, ONCE, { by: through("ann") });
  expect((await asks())[0]?.request.votes.map(({ person: who }) => who?.name)).toEqual(["ann"]);
  await answer("r2", ask, ONCE, { by: through("bob") });
  expect(await end()).toMatchObject({ case: "completed" });
  await expect(answer("r3", ask, ONCE, { by: through("cem") })).rejects.toMatchObject({
    reason: ErrorReason.ALREADY_ANSWERED,
  });
});

test("a voter who has left the group does not count, not even between the last vote and the start", async () => {
  const left = new Set<string>();
  const { replicas, answer, asks, openAsk, entered, end } = await waiting({
    ...deciding(entry()),
    groupsNow: ({ id, groups }) => (left.has(id) ? [] : groups),
    tamper: (ports) => ({
      ...ports,
      permissions: over(ports.permissions, {
        async settle(settlement) {
          if (settlement.settled.length > 0 && (await asksOf(ports)).length === 1) left.add("prs_carol");
          return await ports.permissions.settle(settlement);
        },
      }),
    }),
  });
  const asksOf = async ({ permissions }: Store) => await permissions.openAsks({ limit: 10 });
  const ask = await openAsk();
  await answer("r1", ask, ONCE, { by: approver("ann") });
  left.add("prs_ann");
  await answer("r1", ask, ONCE, { by: approver("bob") });
  expect(await openAsk()).toBe(ask);
  await replicas.at("r2").calls.drain(0);
  await answer("r2", ask, ONCE, { by: approver("carol") });
  await expect.poll(async () => (await asks()).length).toBe(2);
  expect((await asks())[1]?.request).toMatchObject({
    changed: expect.stringContaining("has left the group"),
    votes: [],
  });
  expect(entered).toEqual([]);
  for (const name of ["bob", "dan"]) await answer("r1", await openAsk(), ONCE, { by: approver(name) });
  expect(await end()).toMatchObject({ case: "completed" });
});

test("a grant is saved if all votes name the same offer, and covers what needs votes only by those who saved it", async () => {
  const groups = new Map<string, string[]>();
  const { replicas, answer, asks, openAsk, entered, end } = await waiting({
    ...deciding(entry()),
    groupsNow: (person) => groups.get(person.name) ?? person.groups,
  });
  const { calls, store } = replicas.at("r1");
  const [offer] = (await asks())[0]?.request.offers ?? [];
  for (const name of ["ann", "bob"])
    await answer("r1", await openAsk(), ALWAYS, { by: approver(name), offerId: offer?.id ?? "" });
  expect(await end()).toMatchObject({ case: "completed" });
  const grants = await store.permissions.listGrants({ includeDead: false, limit: 10 });
  expect(grants.map(({ voters }) => voters.map(({ name }) => name))).toEqual([["ann", "bob"]]);
  const next = async (callId: string) => {
    const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId, tool: "deploy" });
    const { record } = await calls.open(agent, request);
    return record;
  };
  const covered = await next("call_2");
  expect((await calls.wait(covered, 10_000, never)).part.state).toMatchObject({ case: "completed" });
  groups.set("ann", []);
  const asking = await next("call_3");
  await expect.poll(async () => (await store.permissions.asksOf(asking.ref)).length).toBe(1);
  const [third] = await store.permissions.asksOf(asking.ref);
  await answer("r1", third?.request.id ?? "", ALWAYS, { by: approver("bob"), offerId: offer?.id ?? "" });
  await answer("r1", third?.request.id ?? "", ONCE, { by: approver("carol") });
  expect((await calls.wait(asking, 10_000, never)).part.state).toMatchObject({ case: "completed" });
  expect((await store.permissions.asksOf(asking.ref))[0]?.settled).toMatchObject({ outcome: PermissionOutcome.ONCE });
  expect(await store.permissions.listGrants({ includeDead: false, limit: 10 })).toHaveLength(1);
  expect(entered).toHaveLength(3);
});

test("an edit voids the votes: what the new input needs is asked for without them", async () => {
  const { answer, asks, openAsk, end } = await waiting(deciding(entry()));
  const ask = await openAsk();
  await answer("r1", ask, ONCE, { by: approver("ann") });
  await expect(answer("r1", ask, ONCE, { by: approver("eve", []), input: { to: "x" } })).rejects.toMatchObject({
    reason: ErrorReason.NOT_ELIGIBLE,
  });
  await answer("r1", ask, ONCE, { by: approver("bob"), input: { to: "elsewhere" } });
  await expect.poll(openAsk).not.toBe("");
  expect(await asks()).toMatchObject([
    { settled: { outcome: PermissionOutcome.EDITED, votes: [{ by: "ann" }] } },
    { request: { votes: [], need: { all: [{ approve: 2 }] } } },
  ]);
  for (const name of ["ann", "bob"]) await answer("r2", await openAsk(), ONCE, { by: approver(name) });
  expect(await end()).toMatchObject({ case: "completed" });
});

test("what a body was allowed holds for the rest of the call while those who approved it are still in the group", async () => {
  const left = new Set<string>();
  const gates = Array.from({ length: 2 }, () => Promise.withResolvers<void>());
  let done = 0;
  const { answer, asks, openAsk, end, entered } = await waiting(
    { ...deciding(entry()), groupsNow: ({ id, groups }) => (left.has(id) ? [] : groups) },
    undefined,
    async (ctx) => {
      for (const gate of gates) {
        await gate.promise;
        await ctx.ask({ permission: "deploy", patterns: ["production"] });
        done += 1;
      }
    },
  );
  const approve = async (...names: string[]) => {
    for (const name of names) await answer("r1", await openAsk(), ONCE, { by: approver(name) });
  };
  await approve("ann", "bob");
  await expect.poll(() => entered).toHaveLength(1);
  gates[0]?.resolve();
  await expect.poll(() => done).toBe(1);
  expect(await asks()).toHaveLength(1);
  left.add("prs_ann");
  gates[1]?.resolve();
  await expect.poll(async () => (await asks()).length).toBe(2);
  expect((await asks())[1]).toMatchObject({ request: { votes: [] } });
  await approve("bob", "carol");
  expect(await end()).toMatchObject({ case: "completed" });
});

const dayMs = 86_400_000;

/** Delegates over a table in memory. Ann and amy are in the group; `groups` holds what changed since. */
function delegating(freshUntil = 0) {
  const groups = new Map<string, string[] | undefined>();
  let records: readonly Delegate[] = [];
  let now = () => 0;
  const remove = async (id: string) => {
    const found = records.find((record) => record.id === id);
    records = records.filter((record) => record.id !== id);
    return found;
  };
  const personNamed = (id: string) => {
    const own = ["prs_ann", "prs_amy"].includes(id) ? ["sre"] : ["dev"];
    return approver(id.slice("prs_".length), own).identity?.person;
  };
  const delegates = createDelegates({
    table: {
      current: () => records,
      async refresh() {},
      async put(record) {
        records = [...records.filter(({ id }) => id !== record.id), record];
      },
      remove,
    },
    people: {
      find: (id) => create(PersonRecordSchema, { id, person: personNamed(id) ?? {} }),
      async noteAbout() {},
    },
    groupsNow: (person) => (groups.has(person.id) ? groups.get(person.id) : person.groups),
    now: () => now(),
  });
  return {
    groups,
    setting: { groupsNow: delegates.groupsNow, delegatorsOf: delegates.delegatorsOf },
    /** Takes the time from replicas. */
    at({ replicas }: Pick<Awaited<ReturnType<typeof waiting>>, "replicas">) {
      const { store } = replicas.at("r1");
      now = store.calls.now;
    },
    remove: (from: string) => delegates.remove(approver(from), `prs_${from}`),
    put: (from: string, to: string, fields: MessageInitShape<typeof PutDelegateRequestSchema> = {}) =>
      delegates.put(
        { ...approver(from), freshUntil },
        create(PutDelegateRequestSchema, {
          ...{ personId: `prs_${from}`, to: `prs_${to}`, until: now() + 1_000 },
          ...fields,
        }),
      ),
  };
}

const eve = approver("eve", ["dev"]);

test("a delegate has one vote, for all who named them, and none beside a vote of such a person", async () => {
  const delegation = delegating();
  const call = await waiting({ ...deciding(entry()), ...delegation.setting });
  const { answer, asks, openAsk, end } = call;
  delegation.at(call);
  const ask = await openAsk();
  await expect(answer("r1", ask, ONCE, { by: eve })).rejects.toMatchObject({ reason: ErrorReason.NOT_ELIGIBLE });
  await delegation.put("ann", "eve");
  await delegation.put("amy", "eve");
  await answer("r1", ask, ONCE, { by: eve });
  const votes = async () =>
    (await asks())[0]?.request.votes.map(({ person: who, onBehalfOf }) => [
      who?.name,
      ...onBehalfOf.map((p) => p.name),
    ]);
  expect(await votes()).toEqual([["eve", "ann", "amy"]]);
  await delegation.remove("amy");
  await answer("r2", ask, ONCE, { by: approver("ann") });
  expect([await openAsk(), await votes()]).toEqual([ask, [["eve", "ann", "amy"], ["ann"]]]);
  // A delegate who is in the group votes for themselves.
  await delegation.put("amy", "bob");
  await answer("r3", ask, ONCE, { by: approver("bob") });
  expect(await end()).toMatchObject({ case: "completed" });
  expect((await asks())[0]?.settled?.votes.at(-1)).toMatchObject({ person: { name: "bob" }, onBehalfOf: [] });
});

test.each<[what: string, delegate: (delegation: ReturnType<typeof delegating>) => Promise<unknown>, behind?: string]>([
  ["of a delegate", async ({ put }) => [await put("ann", "fay"), await put("fay", "eve")]],
  ["for other permissions", ({ put }) => put("ann", "eve", { permissions: ["bash", "dep"] })],
  ["on a call of the delegate's agent", ({ put }) => put("ann", "eve"), "eve"],
  ["on a call of the agent of who named them", ({ put }) => put("ann", "eve"), "ann"],
  ["by another delegate since", async ({ put }) => [await put("ann", "eve"), await put("ann", "fay")]],
])("a delegate %s is no approver", async (_, delegate, behind) => {
  const delegation = delegating();
  const person = behind === undefined ? undefined : approver(behind).identity?.person;
  const rule = entry({ all: [{ approve: 1, from: ["sre"] }] });
  const call = await waiting({ ...deciding(rule), ...delegation.setting, behind: person });
  delegation.at(call);
  await delegate(delegation);
  await expect(call.answer("r1", await call.openAsk(), ONCE, { by: eve })).rejects.toMatchObject({
    reason: ErrorReason.NOT_ELIGIBLE,
  });
});

test.each([
  ["no more than its sign-in", 0, ErrorReason.NOT_ELIGIBLE],
  ["the proof of the delegate where it was fresh", Number.POSITIVE_INFINITY, ErrorReason.METHOD_TOO_WEAK],
])("a delegation gives %s for what needs a passkey", async (_, freshUntil, reason) => {
  const delegation = delegating(freshUntil);
  const rule = entry({ all: [{ approve: 1, from: ["sre"] }], method: AnswerMethod.PASSKEY });
  const call = await waiting({ ...deciding(rule), ...delegation.setting });
  delegation.at(call);
  await delegation.put("ann", "eve");
  await expect(call.answer("r1", await call.openAsk(), ONCE, { by: eve })).rejects.toMatchObject({ reason });
});

test.each<
  [what: string, change: (delegation: ReturnType<typeof delegating>, advance: (ms: number) => void) => unknown]
>([
  ["was removed", ({ remove }) => remove("ann")],
  [
    "was put again",
    async ({ put }, advance) => {
      advance(1);
      await put("ann", "eve");
    },
  ],
  ["ended", (_, advance) => advance(1_000)],
  ["is of one who left the group", ({ groups }) => groups.set("prs_ann", [])],
  ["is of one who was revoked", ({ groups }) => groups.set("prs_ann", undefined)],
  ["is to one who was revoked", ({ groups }) => groups.set("prs_eve", undefined)],
])("a vote does not count at the start if its delegation %s after the last vote", async (_, change) => {
  const delegation = delegating();
  let isDone = false;
  const call = await waiting({
    ...deciding(entry({ all: [{ approve: 1, from: ["sre"] }], askMs: 30 * dayMs })),
    ...delegation.setting,
    tamper: (ports) => ({
      ...ports,
      permissions: over(ports.permissions, {
        async settle(settlement) {
          if (!isDone) await change(delegation, call.replicas.advance);
          isDone = true;
          return await ports.permissions.settle(settlement);
        },
      }),
    }),
  });
  const { replicas, answer, asks, openAsk, entered } = call;
  delegation.at(call);
  await delegation.put("ann", "eve", { permissions: ["dep*"] });
  const ask = await openAsk();
  await replicas.at("r2").calls.drain(0);
  await answer("r2", ask, ONCE, { by: eve });
  await expect.poll(async () => (await asks()).length).toBe(2);
  expect((await asks())[1]?.request).toMatchObject({ changed: expect.stringContaining("has left"), votes: [] });
  expect(entered).toEqual([]);
});

test("a vote of a delegate counts again if they vote again, and saves no grant", async () => {
  const delegation = delegating();
  const call = await waiting({ ...deciding(entry()), ...delegation.setting });
  const { answer, asks, openAsk, end, replicas } = call;
  delegation.at(call);
  const [offer] = (await asks())[0]?.request.offers ?? [];
  const always = { by: eve, offerId: offer?.id ?? "" };
  const ask = await openAsk();
  await delegation.put("ann", "eve");
  await answer("r1", ask, ALWAYS, always);
  replicas.advance(1);
  await delegation.put("ann", "eve");
  await answer("r1", ask, ALWAYS, { ...always, by: approver("bob") });
  expect(await openAsk()).toBe(ask);
  await answer("r1", ask, ALWAYS, always);
  expect(await end()).toMatchObject({ case: "completed" });
  const { store } = replicas.at("r1");
  expect((await asks())[0]?.settled).toMatchObject({ outcome: PermissionOutcome.ONCE });
  expect(await store.permissions.listGrants({ includeDead: false, limit: 10 })).toEqual([]);
});

const stores: [string, () => Partial<Setting>][] = [
  ["Redis", () => ({ newContents: inRedis(redis.url) })],
  ["SQLite", () => ({ newContents: inSqlite })],
];

test.each(stores)(
  "on %s a request that a rule keeps open for 30 days can be approved then, whatever restarts",
  async (_, setting) => {
    const { replicas, answer, record, entered } = await waiting({
      ...setting(),
      ...deciding(entry({ askMs: 30 * dayMs })),
    });
    const call = await record();
    if (!call) throw new Error("there is no call");
    const asks = async () => await replicas.any().store.permissions.asksOf(call.ref);
    const [{ request } = {}] = await asks();
    expect((request?.expires ?? 0) - (request?.created ?? 0)).toBe(30 * dayMs);
    for (let day = 1; day < 30; day++) {
      replicas.advance(dayMs);
      if (day % 7 === 0) await replicas.kill(replicas.names()[0] ?? "");
      await replicas.each(async ({ calls, store }) => {
        await store.calls.sweep();
        await store.permissions.dueAsks(10).then((expired) => expect(expired).toEqual([]));
        await calls.recover();
      });
      if (day === 1) await answer(replicas.names()[0] ?? "", request?.id ?? "", ONCE, { by: approver("ann") });
    }
    expect((await asks()).map(({ request: { id, votes } }) => [id, votes.length])).toEqual([[request?.id, 1]]);
    const [last = ""] = replicas.names();
    await replicas.at(last).calls.drain(0);
    await answer(last, request?.id ?? "", ONCE, { by: approver("bob") });
    await replicas.kill(last);
    await replicas.each(({ calls }) => calls.recover());
    expect((await replicas.any().calls.wait(call, 10_000, never)).part.state).toMatchObject({ case: "completed" });
    expect(entered).toHaveLength(1);
  },
);

const minuteMs = 60_000;
const toLead = { afterMs: 10 * minuteMs, to: ["lead"], channels: ["pager"] };

test.each(stores)(
  "on %s a step is taken once, whichever replica looks or dies, and its group counts only from then on",
  async (_, setting) => {
    const rule = entry({ method: 4, reasonRequired: true, otherPerson: true, escalate: [toLead] });
    const behind = approver("mia").identity?.person;
    const { replicas, answer, record, entered } = await waiting({ ...setting(), ...deciding(rule), behind });
    const call = await record();
    if (!call) throw new Error("there is no call");
    const { permissions } = replicas.any().store;
    const read = async () => {
      const [asked] = await replicas.any().store.permissions.asksOf(call.ref);
      if (!asked) throw new Error("there is no ask");
      return asked.request;
    };
    const { id, view } = await read();
    const vote = (by: Principal, fields = {}) =>
      answer(replicas.names()[0] ?? "", id, ONCE, { by, reason: "planned", ...fields });
    const look = () => replicas.each(async ({ calls }) => void (await Promise.all([calls.recover(), calls.recover()])));
    const lead = approver("eve", ["lead"]);
    replicas.advance(toLead.afterMs - 1);
    await look();
    expect(await read()).toMatchObject({ escalations: [{ to: ["lead"], taken: 0 }] });
    await expect(vote(lead)).rejects.toMatchObject({ reason: ErrorReason.NOT_ELIGIBLE });
    expect(await permissions.dueAsks(10)).toEqual([]);
    // Late, since the replica that would have looked is gone.
    await replicas.kill(replicas.names()[0] ?? "");
    replicas.advance(minuteMs);
    await look();
    await look();
    const request = await read();
    expect(request.escalations.map(({ taken }) => taken > 0)).toEqual([true]);
    expect([request.need?.all, request.view]).toEqual([[expect.objectContaining({ approve: 2, from: ["sre"] })], view]);
    const { store } = replicas.any();
    expect((await replicas.any().notices.listNotices()).filter(({ channel }) => channel === "pager")).toHaveLength(1);
    const token = { ...lead, identity: { ...lead.identity, method: AnswerMethod.TOKEN } } as Principal;
    await expect(vote(token)).rejects.toMatchObject({ reason: ErrorReason.METHOD_TOO_WEAK });
    await expect(vote(lead, { reason: "" })).rejects.toMatchObject({ reason: ErrorReason.REASON_MISSING });
    await expect(vote(approver("mia", ["lead"]))).rejects.toMatchObject({ reason: ErrorReason.NOT_ELIGIBLE });
    await expect(vote(approver("dan", ["dev"]))).rejects.toMatchObject({
      message: expect.stringContaining("sre, lead"),
    });
    await vote(lead);
    expect(needWords(await read())).toContain("1 of 2, waiting for sre, by now also lead");
    expect(entered).toEqual([]);
    await vote(approver("ann"));
    expect((await replicas.any().calls.wait(call, 10_000, never)).part.state).toMatchObject({ case: "completed" });
    const chain = await store.permissions.listDecisions({ root: "ses_a", afterSeq: 0, limit: 20 });
    const steps = chain.flatMap(({ record }) => (record?.kind === DecisionKind.ESCALATED ? [record.escalations] : []));
    expect(steps).toMatchObject([[{ to: ["lead"], channels: ["pager"] }]]);
  },
);

test.each(stores)("on %s a request whose step was taken is refused at its end like any other", async (_, setting) => {
  const { replicas, record, entered, openAsk } = await waiting({
    ...setting(),
    ...deciding(entry({ askMs: 15 * minuteMs, escalate: [toLead] })),
  });
  await openAsk();
  const call = await record();
  if (!call) throw new Error("there is no call");
  for (const ms of [toLead.afterMs, 5 * minuteMs]) {
    replicas.advance(ms);
    await replicas.each(({ calls }) => calls.recover());
  }
  const [asked] = await replicas.any().store.permissions.asksOf(call.ref);
  expect(asked?.request.escalations).toMatchObject([{ to: ["lead"] }]);
  expect(asked?.settled?.outcome).toBe(PermissionOutcome.EXPIRED);
  expect(entered).toEqual([]);
});

test.each([
  ["a caller's call does not count", undefined, "completed"],
  ["an MCP client's call counts", "claude", "error"],
])("the wait of %s for those who have to approve it", async (_, client, end) => {
  const rule = entry({ pattern: "production*", all: oneOfAny, askMs: 30 * dayMs });
  const call = await waiting({ ...deciding(rule), ...(client !== undefined && { client }) }, async (count) =>
    count < 3 ? "production" : "production again",
  );
  for (const _round of [1, 2]) {
    const ask = await call.openAsk();
    call.replicas.advance(0.6 * dayMs);
    await call.answer("r1", ask, ONCE, { by: approver("ann") });
    await call.replicas.each(({ calls }) => calls.recover());
    await expect.poll(call.openAsk).not.toBe(ask);
  }
  await call.replicas.each(({ calls }) => calls.recover());
  expect(await call.end()).toMatchObject({ case: end });
});

test("a request holds so many votes, one more that does not approve it is refused, and a rejection counts", async () => {
  const left = new Set<string>();
  const { answer, asks, openAsk, end } = await waiting({
    ...deciding(entry()),
    groupsNow: ({ id, groups }) => (left.has(id) ? [] : groups),
  });
  const ask = await openAsk();
  for (let i = 0; i < 100; i++) {
    await answer("r1", ask, ONCE, { by: approver(`person ${i}`) });
    left.add(`prs_person ${i}`);
  }
  await expect(answer("r1", ask, ONCE, { by: approver("one more") })).rejects.toMatchObject({
    reason: ErrorReason.QUOTA_EXCEEDED,
    message: expect.stringContaining("has 100 votes, and is not approved; reject it"),
  });
  expect((await asks())[0]?.request.votes).toHaveLength(100);
  await answer("r1", ask, PermissionReply.REJECT, { by: approver("eve") });
  expect(await end()).toMatchObject({ case: "error", value: { reason: ToolErrorReason.REJECTED } });
});

test.each([
  ["Redis", (): Partial<Setting> => ({ newContents: inRedis(redis.url) }), ["r1", "r2", "r3"]],
  ["SQLite", (): Partial<Setting> => ({ newContents: inSqlite }), ["r1"]],
] as const)(
  "of racing votes on %s exactly as many count as are needed, and the call runs once",
  async (_, setting, at) => {
    const { answer, asks, openAsk, entered, end } = await waiting({
      ...setting(),
      ...deciding(entry({ all: [{ approve: 5, from: ["sre"] }] })),
    });
    const ask = await openAsk();
    const racing = Array.from({ length: 12 }, (_, i) =>
      answer(at[i % at.length] ?? "r1", ask, ONCE, { by: approver(`person ${i}`) }).then(
        () => "counts",
        ({ reason }: RequestError) => (reason === ErrorReason.ALREADY_ANSWERED ? "late" : String(reason)),
      ),
    );
    const outcomes = await Promise.all(racing);
    expect(await end()).toMatchObject({ case: "completed" });
    expect(outcomes.filter((each) => each === "counts")).toHaveLength(5);
    expect(outcomes.filter((each) => each === "late")).toHaveLength(7);
    expect((await asks())[0]?.settled?.votes).toHaveLength(5);
    expect(entered).toHaveLength(1);
  },
);
