import { setImmediate } from "node:timers/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  DecisionKind,
  PermissionAction,
  PermissionOutcome,
  PermissionSettledSchema,
  PersonSchema,
  type Vote,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  PermissionResponseSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Settlement } from "../../src/approval/ports.ts";
import type { CallRecord, Store } from "../../src/call/ports.ts";
import type { Principal } from "../../src/core/principal.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { seed } from "../seed.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { agent } from "./clients.ts";
import { startReplicas } from "./replicas.ts";
import { inRedis, inSqlite, type NewContents } from "./stores.ts";

/** Two persons of the group have to approve, two persons have to reject. */
const [approve, reject] = [2, 2];
const people = ["ann", "bob", "cat", "dan", "eve"] as const;
/** Only of a group that a step adds. */
const lead = "eve";
const stepMs = 600_000;
// The long run of the faults takes 50,000 acts and 20,000 racing votes on each store; ten seeds take a million acts.
const isLong = process.env.TOOLGATE_LONG === "1";
const { ONCE, REJECT } = PermissionOutcome;

type Act =
  | { do: "vote"; who: string; at: number; reply: typeof ONCE | typeof REJECT }
  | { do: "edit"; who: string; at: number }
  | { do: "move"; who: string }
  | { do: "wait" }
  | { do: "kill"; at: number };

const [who, at] = [fc.constantFrom(...people), fc.nat({ max: 5 })];
const acts = fc.array(
  fc.oneof(
    {
      weight: 6,
      arbitrary: fc.record({ do: fc.constant("vote" as const), who, at, reply: fc.constantFrom(ONCE, ONCE, REJECT) }),
    },
    { weight: 1, arbitrary: fc.record({ do: fc.constant("edit" as const), who, at }) },
    { weight: 3, arbitrary: fc.record({ do: fc.constant("move" as const), who }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant("wait" as const) }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant("kill" as const), at }) },
  ),
  isLong ? { minLength: 100, maxLength: 200, size: "max" } : { minLength: 8, maxLength: 24 },
);

/** The task of the service, without its code: who is in the groups, what each person said last of the open request, and its step. */
class Model {
  readonly members: Set<string>;
  votes = new Map<string, typeof ONCE | typeof REJECT>();
  phase: "open" | "completed" | "rejected" = "open";
  requests = 1;
  isEscalated = false;

  constructor(members: Set<string>) {
    this.members = members;
  }

  counts(person: string): boolean {
    return this.members.has(person) && (person !== lead || this.isEscalated);
  }

  vote(person: string, reply: typeof ONCE | typeof REJECT): "ok" | "refused" {
    const isAgain = this.votes.get(person) === reply;
    // An answer that is sent again is the same vote, and a person who has left adds none.
    if (reply === ONCE && !this.counts(person)) return isAgain ? "ok" : "refused";
    this.votes.set(person, reply);
    const all = [...this.votes];
    if (reply === REJECT && all.filter(([, said]) => said === REJECT).length >= reject) this.phase = "rejected";
    if (reply === ONCE && all.filter(([each, said]) => said === ONCE && this.counts(each)).length >= approve)
      this.phase = "completed";
    return "ok";
  }

  isOver(): boolean {
    return this.phase !== "open";
  }

  edit(person: string): "ok" | "refused" {
    if (!this.counts(person)) return "refused";
    this.votes = new Map();
    this.isEscalated = false;
    this.requests += 1;
    return "ok";
  }
}

/** A service with a fault: in what the store does with votes, or in what is known of groups. */
interface Fault {
  tamper?: (ports: Store) => Store;
  groupsStay?: boolean;
}

/** Starts replicas with a tool that needs votes. */
async function startDeploy(
  newContents: NewContents,
  needed: { approve: number; reject: number },
  members: ReadonlySet<string>,
  tamper?: Fault["tamper"],
) {
  const entered: string[] = [];
  const replicas = await startReplicas(
    {
      ...{ newContents, pace: [0], ...(tamper && { tamper }) },
      groupsNow: ({ name }) => groupsOf(name, members),
      approvals: {
        groups: [],
        rules: [
          {
            ...{
              permission: "deploy",
              pattern: "*",
              action: PermissionAction.ASK,
              risks: [],
              agent: "*",
              workspace: "*",
            },
            ...{ all: [{ approve: needed.approve, from: ["sre"] }], reject: needed.reject, always: true },
            ...{ reasonRequired: false, shownRequired: false, method: 0, otherPerson: false },
            escalate: [{ afterMs: stepMs, to: ["lead"], channels: [] }],
            askMs: 30 * 86_400_000,
          },
        ],
      },
    },
    {
      toolsOf: () => [
        defineTool({
          name: "deploy",
          description: "Deploys.",
          input: z.object({ count: z.number().optional() }),
          plan: () => ({ title: "deploy", asks: [{ permission: "deploy", patterns: ["production"] }] }),
          execute(_, { callId }) {
            entered.push(callId);
            return { output: "deployed" };
          },
        }),
      ],
      onNews() {},
    },
  );
  const first = replicas.any();
  await first.sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const asks = async ({ ref }: Pick<CallRecord, "ref">) => await replicas.any().store.permissions.asksOf(ref);
  return {
    replicas,
    entered,
    asks,
    async open(callId: string) {
      const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId, tool: "deploy" });
      return (await replicas.any().calls.open(agent, request)).record;
    },
    /** Reads the requests of a call until there are so many. */
    async requests(call: CallRecord, count: number) {
      for (let turn = 0; turn < 5_000; turn++) {
        const all = await asks(call);
        if (all.length >= count) return all;
        await setImmediate();
      }
      throw new Error(`there is no request ${count}`);
    },
    /** Answers the last request of a call at some replica. */
    async answer(
      call: CallRecord,
      person: string,
      place: number,
      fields: MessageInitShape<typeof PermissionResponseSchema>,
    ) {
      const all = replicas.names();
      const permissionId = (await asks(call)).at(-1)?.request.id ?? "";
      const response = create(PermissionResponseSchema, { ...fields, sessionId: "ses_a", permissionId });
      const { calls } = replicas.at(all[place % all.length] ?? "");
      return await calls.answer(personNamed(person, members), "default", response).then(
        () => "ok",
        (cause: unknown) => {
          if (!(cause instanceof RequestError)) throw cause;
          return cause.reason === ErrorReason.NOT_ELIGIBLE ? "refused" : `reason ${cause.reason}`;
        },
      );
    },
    end: (call: CallRecord) => replicas.any().calls.wait(call, 60_000, new AbortController().signal),
  };
}

/** Takes the acts, and compares the service with the model after each. */
async function follow(
  newContents: NewContents,
  steps: readonly Act[],
  { tamper, groupsStay }: Fault = {},
): Promise<void> {
  let model = new Model(new Set([...people.slice(0, 3), lead]));
  const members = groupsStay ? new Set(model.members) : model.members;
  const service = await startDeploy(newContents, { approve, reject }, members, tamper);
  const { replicas, entered, answer, requests } = service;
  let escalations = 0;
  try {
    let call = await service.open("call_0");
    await requests(call, 1);
    for (const [count, act] of steps.entries()) {
      if (model.isOver()) {
        model = new Model(model.members);
        call = await service.open(`call_${count}`);
        await requests(call, 1);
      }
      if (act.do === "kill") {
        const all = replicas.names();
        await replicas.kill(all[act.at % all.length] ?? "");
      }
      if (act.do === "wait") {
        escalations += model.isEscalated ? 0 : 1;
        model.isEscalated = true;
        replicas.advance(stepMs);
        await replicas.each(async ({ calls }) => void (await Promise.all([calls.recover(), calls.recover()])));
      }
      if (act.do === "move" && !model.members.delete(act.who)) model.members.add(act.who);
      if (act.do === "edit") {
        const given = await answer(call, act.who, act.at, { reply: PermissionReply.ONCE, input: { count } });
        expect(given).toBe(model.edit(act.who));
      }
      if (act.do === "vote") {
        const reply = act.reply === ONCE ? PermissionReply.ONCE : PermissionReply.REJECT;
        expect(await answer(call, act.who, act.at, { reply })).toBe(model.vote(act.who, act.reply));
      }
      const end = model.phase === "open" ? undefined : await service.end(call);
      const all = await requests(call, model.requests);
      const last = all.at(-1);
      const votes = last?.settled?.votes ?? last?.request.votes ?? [];
      const isEscalated = last?.request.escalations.some(({ taken }) => taken > 0);
      const found = { count: all.length, isOpen: last?.settled === undefined, votes: said(votes), isEscalated };
      const ran = entered.filter((callId) => callId === call.ref.callId).length;
      expect({ ...found, entered: ran, end: end?.part.state.case }).toEqual({
        count: model.requests,
        isOpen: model.phase === "open",
        votes: [...model.votes].toSorted(byName),
        isEscalated: model.isEscalated,
        entered: model.phase === "completed" ? 1 : 0,
        end: { open: undefined, completed: "completed", rejected: "error" }[model.phase],
      });
    }
    const { permissions } = replicas.any().store;
    const chain = await permissions.listDecisions({ root: "ses_a", afterSeq: 0, limit: 10_000 });
    expect(chain.filter(({ record }) => record?.kind === DecisionKind.ESCALATED)).toHaveLength(escalations);
  } finally {
    await replicas.stop();
  }
}

const byName = ([one]: readonly [string, unknown], [other]: readonly [string, unknown]) => (one < other ? -1 : 1);
const said = (votes: readonly Vote[]) =>
  votes.map(({ person, outcome }) => [person?.name ?? "", outcome] as const).toSorted(byName);

function groupsOf(name: string, members: ReadonlySet<string>): string[] {
  return members.has(name) ? [name === lead ? "lead" : "sre"] : [];
}

function personNamed(name: string, members: ReadonlySet<string>): Principal {
  const groups = groupsOf(name, members);
  return {
    ...{ ...agent, id: name, lineage: [name], roles: new Set(["approver"]) },
    identity: {
      person: create(PersonSchema, { id: `prs_${name}`, issuer: "local", subject: name, name, groups }),
      method: AnswerMethod.SESSION,
    },
  };
}

/** The votes of others would settle the request, but nobody has voted since: the vote of a person who left is still one sent again. */
const againWhenOthersSuffice: Act[] = [
  { do: "vote", who: "ann", at: 0, reply: ONCE },
  { do: "move", who: "ann" },
  { do: "vote", who: "bob", at: 0, reply: ONCE },
  { do: "move", who: "bob" },
  { do: "vote", who: "cat", at: 0, reply: ONCE },
  { do: "move", who: "bob" },
  { do: "vote", who: "ann", at: 0, reply: ONCE },
];

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

const stores: readonly (readonly [name: string, contents: () => NewContents, runs: number])[] = [
  ["SQLite", () => inSqlite, 25],
  ["Redis", () => inRedis(redis.url), 25],
];
test.each(stores)(
  "votes, edits, changes of groups and crashes on %s end as the model says",
  async (_, contents, runs) => {
    const property = fc.asyncProperty(acts, (steps) => follow(contents(), steps));
    await fc.assert(property, { seed, numRuns: isLong ? 340 : runs, examples: [[againWhenOthersSuffice]] });
  },
);

test.each(stores)(
  "racing votes on %s: of each request exactly as many count as are needed, and its call runs once",
  async (_, contents) => {
    const [voters, needed, rounds] = [20, 7, isLong ? 1_000 : 25];
    const persons = Array.from({ length: voters }, (_, i) => `person ${i}`);
    const service = await startDeploy(contents(), { approve: needed, reject: 1 }, new Set(persons));
    try {
      for (let round = 0; round < rounds; round++) {
        const call = await service.open(`call_${round}`);
        await service.requests(call, 1);
        const vote = (person: string, i: number) => service.answer(call, person, i, { reply: PermissionReply.ONCE });
        const given = await Promise.all(persons.map(vote));
        expect((await service.end(call)).part.state.case).toBe("completed");
        expect(given.filter((each) => each === "ok")).toHaveLength(needed);
        expect((await service.asks(call))[0]?.settled?.votes).toHaveLength(needed);
      }
      expect(new Set(service.entered).size).toBe(rounds);
      expect(service.entered).toHaveLength(rounds);
    } finally {
      await service.replicas.stop();
    }
  },
);

/** Changes what the store is asked to settle. */
const settling =
  (change: (settlement: Settlement) => Settlement) =>
  (ports: Store): Store => ({
    ...ports,
    permissions: { ...ports.permissions, settle: (settlement) => ports.permissions.settle(change(settlement)) },
  });
const voting = (change: (votes: readonly Vote[]) => Vote[]) =>
  settling(({ voted, ...step }) =>
    voted ? { ...step, voted: voted.map((each) => ({ ...each, votes: change(each.votes) })) } : step,
  );

describe("the model finds a service", () => {
  test.each<[fault: string, Fault]>([
    ["that forgets earlier votes", { tamper: voting((votes) => votes.slice(-1)) }],
    [
      "that counts a person twice",
      {
        tamper: voting((votes) => [
          ...votes,
          ...votes.slice(-1).map((vote) => ({
            ...vote,
            person: create(PersonSchema, { id: "prs_twin", name: "twin", groups: ["sre"] }),
          })),
        ]),
      },
    ],
    ["that settles by one vote", { tamper: settling(earlySettlement) }],
    ["that loses a vote", { tamper: settling((step) => (step.voted ? { ...step, voted: [], decisions: [] } : step)) }],
    ["that does not notice who leaves the group", { groupsStay: true }],
    ["that lets the group of a step count from the start", { tamper: takingSteps }],
    ["that takes no step", { tamper: idle }],
    ["that keeps votes beyond an edit", { tamper: keepingVotes() }],
  ])("%s", async (_fault, fault) => {
    const found = await fc.check(
      fc.asyncProperty(acts, (steps) => follow(inSqlite, steps, fault)),
      { seed: 7, numRuns: 200, endOnFailure: true },
    );
    expect(found.failed).toBe(true);
  });
});

const idle = (ports: Store): Store => ({
  ...ports,
  permissions: { ...ports.permissions, escalate: () => Promise.resolve(false) },
});

/** Opens requests with their steps taken. */
function takingSteps(ports: Store): Store {
  const taken = (each: PermissionRequest): PermissionRequest => ({
    ...each,
    escalations: each.escalations.map((step) => ({ ...step, taken: step.at })),
  });
  return {
    ...ports,
    calls: { ...ports.calls, openAsks: (step) => ports.calls.openAsks({ ...step, asks: step.asks.map(taken) }) },
  };
}

function earlySettlement({ voted, ...step }: Settlement): Settlement {
  if (!voted) return step;
  const settled = voted.map(({ id, sessionId, tool, votes }) =>
    create(PermissionSettledSchema, { permissionId: id, sessionId, callId: tool?.callId ?? "", outcome: ONCE, votes }),
  );
  return { ...step, settled };
}

function keepingVotes(): (ports: Store) => Store {
  let last: readonly Vote[] = [];
  return (ports) => ({
    ...ports,
    calls: {
      ...ports.calls,
      openAsks: (step) =>
        ports.calls.openAsks({ ...step, asks: step.asks.map((each) => ({ ...each, votes: [...last] })) }),
    },
    permissions: {
      ...ports.permissions,
      settle(settlement) {
        last = settlement.voted?.[0]?.votes ?? last;
        return ports.permissions.settle(settlement);
      },
    },
  });
}
