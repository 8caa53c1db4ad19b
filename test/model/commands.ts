import fc from "fast-check";
import type { Act, Call, Model } from "./model.ts";
import { orphans, type World } from "./world.ts";

/** Generates runs: races of up to three acts, freezes, and clients that begin to watch. The model is part of the world. */
export function runs(maxCommands: number): fc.Arbitrary<Iterable<fc.AsyncCommand<World, World>>> {
  const race = fc.array(fc.oneof(...wishes), { minLength: 1, maxLength: 3 }).map(toRace);
  return fc.commands([race, race, race, race, race, race, race, race, watching], { maxCommands, size: "max" });
}

/** Returns an act that is possible now, if there is one. Generated numbers choose among what exists. */
type Wish = (world: World) => Act | undefined;

const index = fc.nat({ max: 59 });
const session = fc.constantFrom("ses_a", "ses_child", "ses_b");

const execute = fc
  .record({
    at: index,
    session,
    id: fc.constantFrom("call_1", "call_2", "call_3"),
    tool: fc.constantFrom<Call["tool"][]>("ask", "ask", "open", "hold", "look", "parent"),
    key: fc.constantFrom("x", "x", "y"),
    afterSeq: index,
  })
  .map(
    ({ at, id, ...call }): Wish =>
      ({ model }) => ({
        do: "execute",
        at: pick(model.live, at),
        call: `${call.session}/${id}`,
        ...call,
      }),
  );

const reply = fc
  .record({
    at: index,
    which: index,
    by: fc.constantFrom("ann", "bob"),
    answer: fc.constantFrom("ONCE", "ALWAYS", "ALWAYS", "REJECT"),
    isWide: fc.boolean(),
    replyId: fc.constantFrom("", "reply_1", "reply_2"),
  })
  .map(
    ({ at, which, ...answer }): Wish =>
      ({ model }) => {
        const open = callsWhere(model, ({ asks }) => asks.at(-1)?.outcome === "open");
        const asked = callsWhere(model, ({ asks }) => asks.length > 0);
        const call = pick(which % 4 > 0 && open.length > 0 ? open : asked, which);
        const nth = (model.calls[call]?.asks.length ?? 0) - 1;
        return call === "" ? undefined : { do: "reply", at: pick(model.live, at), call, nth, ...answer };
      },
  );

const cancel = fc.tuple(index, index).map(
  ([at, which]): Wish =>
    ({ model }) => {
      const open = callsWhere(model, ({ phase }) => phase !== "ended");
      const call = pick(which % 4 > 0 && open.length > 0 ? open : Object.keys(model.calls), which);
      return call === "" ? undefined : { do: "cancel", at: pick(model.live, at), call };
    },
);

const revoke = fc.tuple(index, index).map(
  ([at, which]): Wish =>
    ({ model }) => {
      const grant = pick(Object.keys(model.grants), which);
      return grant === "" ? undefined : { do: "revoke", at: pick(model.live, at), grant };
    },
);

const close = fc.tuple(index, session, index).map(
  ([at, session, seldom]): Wish =>
    ({ model }) => {
      return seldom % 4 > 0 ? undefined : { do: "close", at: pick(model.live, at), session };
    },
);

const release = fc.tuple(index, fc.constantFrom("completed" as const, "FAILED" as const)).map(
  ([which, end]): Wish =>
    ({ model }) => {
      const call = pick(
        callsWhere(model, ({ tool, phase, owner }) => tool === "hold" && phase === "running" && owner !== ""),
        which,
      );
      return call === "" ? undefined : { do: "release", call, end };
    },
);

const kill = index.map(
  (which): Wish =>
    ({ model, nextReplica }) => ({
      do: "kill",
      replica: pick(model.live, which),
      next: nextReplica(),
    }),
);

const recover = fc.constant<Wish>(({ model }) => ({ do: "recover", calls: orphans(model) }));

const freeze = fc.constant<Wish>(({ model }) => ({
  do: "freeze",
  calls: callsWhere(model, ({ phase }) => phase !== "ended"),
}));

const wishes = [execute, execute, execute, reply, reply, reply, cancel, revoke, close, release, kill, recover, freeze];

const watching = fc.record({ sessionId: session, afterSeq: index }).map(
  ({ sessionId, afterSeq }): fc.AsyncCommand<World, World> => ({
    check: () => true,
    run: (_, world) => world.watch(sessionId, afterSeq),
    toString: () => `watch ${sessionId} after ${afterSeq}`,
  }),
);

function toRace(wishes: readonly Wish[]): fc.AsyncCommand<World, World> {
  let acts: Act[] = [];
  return {
    check: (world) => choose(wishes, world).length > 0,
    async run(_, world) {
      acts = choose(wishes, world);
      await world.race(acts);
    },
    toString: () => acts.map((act) => JSON.stringify(act)).join(" with "),
  };
}

/** Chooses acts for one race: at most one replica dies, or all freeze. Recovery finds no dead replica then, since its leases are alive. */
function choose(wishes: readonly Wish[], world: World): Act[] {
  const acts = wishes.flatMap((wish) => wish(world) ?? []);
  const fault = acts.find(isFault);
  const begun = acts.flatMap((act) => (act.do === "execute" ? act.call : []));
  return acts
    .filter((act) => act === fault || !(isFault(act) || (fault && act.do === "recover")))
    .map((act) => (act.do === "freeze" ? { ...act, calls: [...new Set([...act.calls, ...begun])] } : act));
}

const isFault = (act: Act) => act.do === "kill" || act.do === "freeze";

function callsWhere({ calls }: Model, is: (call: Call) => boolean): string[] {
  return Object.entries(calls).flatMap(([id, call]) => (is(call) ? id : []));
}

function pick(things: readonly string[], which: number): string {
  return things[which % things.length] ?? "";
}
