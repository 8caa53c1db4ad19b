import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Store } from "../../src/call/ports.ts";
import { seed } from "../seed.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { runs } from "./commands.ts";
import type { Act } from "./model.ts";
import type { Setting } from "./replicas.ts";
import { inRedis, inSqlite, type NewContents } from "./stores.ts";
import { createWorld, type World } from "./world.ts";

// TOOLGATE_LONG=1 takes an hour or two and shrinks what it finds; TOOLGATE_SEED repeats the runs of a seed.
const isLong = process.env.TOOLGATE_LONG === "1";
const runsOf = (numRuns: number) => ({
  seed,
  numRuns: isLong ? 20_000 : numRuns,
  endOnFailure: !isLong,
});
const timeout = isLong ? 3 * 3_600_000 : 600_000;

type Tamper = Setting["tamper"];

console.info(`model test: TOOLGATE_SEED=${seed}`);

// Most steps are quick; sometimes all other steps overtake one.
const turns = fc.oneof({ weight: 4, arbitrary: fc.nat({ max: 4 }) }, { weight: 1, arbitrary: fc.nat({ max: 80 }) });
const pace = fc.array(turns, { minLength: 1, maxLength: 40 });

/** Property: random runs of the service agree with its model. */
function anything(newContents: NewContents, tamper?: Tamper) {
  return fc.asyncProperty(runs(25), pace, (commands, pace) =>
    inWorld({ newContents, pace, tamper }, (world) =>
      fc.asyncModelRun(() => ({ model: world, real: world }), commands),
    ),
  );
}

/** Property: the same races agree with the model at every pace. */
function always(races: readonly (readonly Act[])[]) {
  return (newContents: NewContents, tamper?: Tamper) =>
    fc.asyncProperty(pace, (pace) =>
      inWorld({ newContents, pace, tamper }, async (world) => {
        for (const acts of races) await world.race(acts);
      }),
    );
}

const [call, at, session] = ["ses_b/call_1", "r1", "ses_b"];
const asking = { do: "execute", at, session, tool: "ask", key: "x", afterSeq: 0 } as const;
const revocation = always([
  [{ ...asking, call }],
  [{ do: "reply", at, call, nth: 0, by: "ann", answer: "ALWAYS", isWide: false, replyId: "" }],
  [
    { ...asking, call: "ses_b/call_2" },
    { do: "revoke", at, grant: call },
  ],
]);
const death = always([
  [{ ...asking, call, tool: "hold" }],
  [{ do: "kill", replica: at, next: "r2" }],
  [{ do: "recover", calls: [call] }],
]);

const asked = [{ ...asking, call, tool: "parent" }] as const;
const answered = {
  do: "reply",
  call: `${call}.1`,
  nth: 0,
  by: "ann",
  answer: "ONCE",
  isWide: false,
  replyId: "",
} as const;
const parent = always([
  asked,
  [{ do: "kill", replica: at, next: "r2" }],
  [{ do: "recover", calls: [call] }],
  [{ ...answered, at: "r2" }],
]);
const cancelledParent = always([
  asked,
  [
    { do: "freeze", calls: [call, `${call}.1`] },
    { do: "cancel", at, call },
  ],
]);
const frozenParent = always([asked, [{ do: "freeze", calls: [call, `${call}.1`] }], [{ ...answered, at }]]);

const upgrade = { do: "upgrade", replica: at, next: "r2" } as const;
const once = { ...answered, call } as const;
const upgraded = always([[{ ...asking, call }], [upgrade], [{ ...once, at: "r2", nth: 1 }]]);
const answeredMeanwhile = always([[{ ...asking, call }], [upgrade, { ...once, at }]]);
const upgradedParent = always([asked, [upgrade], [{ ...answered, at: "r2", nth: 1 }]]);

async function inWorld(setting: Setting, work: (world: World) => Promise<void>): Promise<void> {
  const world = await createWorld(setting);
  try {
    await work(world);
    await world.finish();
  } finally {
    await world.stop();
  }
}

describe("under concurrent acts and replica deaths the service does what its model allows", () => {
  test("a grant that is revoked starts nothing", () => fc.assert(revocation(inSqlite), runsOf(40)), timeout);

  test("a parent whose replica dies ends with its call", () => fc.assert(parent(inSqlite), runsOf(20)), timeout);

  test.each([
    ["a call that waits", upgraded],
    ["a call that is answered meanwhile", answeredMeanwhile],
    ["the call of a parent that had begun", upgradedParent],
  ])(
    "after an upgrade %s is asked for again, or ran once with its answer",
    (_, property) => fc.assert(property(inSqlite), runsOf(15)),
    timeout,
  );

  test("on SQLite", () => fc.assert(anything(inSqlite), runsOf(40)), timeout);

  describe("with three replicas", () => {
    let redis: RedisServers;
    beforeAll(async () => {
      redis = await startRedis();
    });
    afterAll(() => redis.stop());
    test(
      "a replica that loses a parent to another one leaves its calls alone",
      () => fc.assert(frozenParent(inRedis(redis.url)), runsOf(40)),
      timeout,
    );
    test(
      "a parent that is cancelled while another replica takes it over ends as cancelled",
      () => fc.assert(cancelledParent(inRedis(redis.url)), runsOf(40)),
      timeout,
    );
    test("on Redis", () => fc.assert(anything(inRedis(redis.url)), runsOf(30)), timeout);
  });
});

/** Broken promises of a store, each with the property that detects it. */
const broken: readonly [string, typeof anything | typeof death, (ports: Store) => Partial<Store>][] = [
  [
    "two answers to one ask win",
    anything,
    ({ permissions }) => ({
      permissions: over(permissions, {
        settle: async (settlement) => {
          const result = await permissions.settle(settlement);
          return result.result === "lost" ? { result: "won" } : result;
        },
      }),
    }),
  ],
  [
    "a body is entered without a start mark",
    death,
    ({ calls }) => ({
      calls: over(calls, {
        openCall: ({ start: _, ...call }) => calls.openCall(call),
        startCall: async () => "started",
      }),
    }),
  ],
  [
    "a call starts that relies on a revoked grant",
    revocation,
    ({ calls }) => ({
      calls: over(calls, { startCall: ({ rulesVersion: _, ...step }) => calls.startCall(step) }),
    }),
  ],
  ["a parent is not resumed", parent, ({ calls }) => ({ calls: over(calls, { resumeCall: async () => undefined }) })],
  ["a call is not bound again", upgraded, ({ calls }) => ({ calls: over(calls, { rebindCall: async () => false }) })],
  ["leases of the living lapse", anything, ({ calls }) => ({ calls: over(calls, { renewLeases: async () => [] }) })],
  [
    "an event is left out",
    anything,
    ({ calls }) => ({
      calls: over(calls, {
        readLog: async (...asked) => {
          const page = await calls.readLog(...asked);
          return { ...page, events: page.events.filter(({ seq }) => seq !== 7n) };
        },
      }),
    }),
  ],
];

describe("a store that breaks a promise is detected", () => {
  test.each(broken)("%s", async (_promise, property, breaks) => {
    const tampered = property(inSqlite, (ports) => ({ ...ports, ...breaks(ports) }));
    const { failed } = await fc.check<unknown[]>(tampered, { seed, numRuns: 1_000, endOnFailure: true });
    expect(failed).toBe(true);
  });
});

/** Returns a port with some methods replaced; the others keep their own object. */
function over<Port extends object>(port: Port, methods: Partial<Port>): Port {
  return new Proxy(port, { get: (target, name) => Reflect.get(name in methods ? methods : target, name) });
}
