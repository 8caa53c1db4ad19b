import { create } from "@bufbuild/protobuf";
import { expect } from "vitest";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { callOf, createBell } from "../../src/call/log.ts";
import { isTerminal } from "../../src/call/state.ts";
import { agent, createClients } from "./clients.ts";
import { brokenPromises, unapproved, wideKeysOf } from "./history.ts";
import { createLedger } from "./ledger.ts";
import { type Act, type Deed, type Model, outcomes, view } from "./model.ts";
import { createObserver } from "./observer.ts";
import { type Replica, type Setting, startReplicas } from "./replicas.ts";

/** The service next to its model. */
export type World = Awaited<ReturnType<typeof createWorld>>;

/** Sessions by root: a root with a child, and another root. */
const roots: Readonly<Record<string, string>> = { ses_a: "ses_a", ses_child: "ses_a", ses_b: "ses_b" };
const sessions = Object.keys(roots);
/** Time to come to rest, far longer than needed. */
const patienceMs = 5_000;

/** Starts replicas and clients, whose acts are compared with the model. */
export async function createWorld(setting: Setting) {
  const bell = createBell();
  const ledger = createLedger(bell.ring);
  const replicas = await startReplicas(setting, { toolsOf: ledger.tools, onNews: bell.ring });
  const observer = createObserver({ replicas, ledger, sessions });
  const clients = createClients({ replicas, ledger, names: observer.names, onEvent: bell.ring });
  /** Acts that resolve only when a call has ended, which may take until orphans are recovered. */
  const slow: Promise<unknown>[] = [];
  /** Every model that agrees with the observations so far. */
  const nothing: Model = { roots, closed: [], live: replicas.names(), calls: {}, grants: {} };
  let possible: readonly Model[] = [nothing];

  for (const [id, root] of Object.entries(roots)) {
    const parentSessionId = id === root ? "" : root;
    const request = create(CreateSessionRequestSchema, { sessionId: id, parentSessionId });
    await replicas.any().sessions.create(agent, request);
    await clients.watch(id, 0);
  }

  /** Waits until a check on the log or the ledger holds, while replicas manage their calls; false after `patienceMs`. */
  async function comes(check: () => Promise<boolean>, look: (replica: Replica) => Promise<void>): Promise<boolean> {
    const late = AbortSignal.timeout(patienceMs);
    while (!late.aborted) {
      await replicas.each(look);
      if (await check()) return true;
      // Without news time is advanced, until others can claim calls that a replica has released.
      if ((await bell.wait(200, new AbortController().signal)) === "quiet") await replicas.outliveTheDead();
    }
    return false;
  }

  async function perform(acts: readonly Act[]): Promise<Deed[]> {
    const deeds = acts.map((act): Deed => ({ act, response: "ok" }));
    const waits = deeds.map(async (deed) => {
      deed.response = await clients.perform(deed.act);
    });
    const done = (which: (act: Act) => boolean) => waits.filter((_, i) => acts.slice(i, i + 1).some(which));
    slow.push(...done(isSlow));
    await Promise.all(done((act) => !isSlow(act)));
    // Acts at a replica that is dead now have a response by now: `lost` at the latest.
    await Promise.all(done((act) => "at" in act && !replicas.names().includes(act.at)));
    return deeds;
  }

  return {
    /** One of the possible models; all have the same view. */
    get model(): Model {
      return possible[0] ?? nothing;
    },
    nextReplica: replicas.nextName,
    watch: clients.watch,

    /** Performs acts concurrently, and compares the state at rest with the model. */
    async race(acts: readonly Act[]): Promise<void> {
      const deeds = await perform(acts);
      if (acts.some((act) => act.do === "kill" || act.do === "upgrade")) await replicas.outliveTheDead();
      const allowed = Map.groupBy(outcomes(possible, deeds), view);
      let seen = "not observed: no order explains the responses";
      // One recovery may miss a call that changes meanwhile; the service recovers every second.
      const isLooking = acts.some((act) => ["recover", "freeze", "upgrade"].includes(act.do));
      const cameToRest =
        allowed.size > 0 &&
        (await comes(
          async () => {
            seen = await observer.look();
            return allowed.has(seen);
          },
          async ({ calls, deliver }) => {
            await calls.stopLapsed();
            await calls.handleCancels();
            await deliver();
            if (isLooking) await calls.recover();
          },
        ));
      if (!cameToRest) throw new Surprise(deeds, seen, [...allowed.keys()]);
      possible = allowed.get(seen) ?? [];
    },

    /** Ends everything, and checks the promises that hold for every run. */
    async finish(): Promise<void> {
      const [at = ""] = replicas.names();
      await this.race(["ses_a", "ses_b"].map((session) => ({ do: "close", at, session })));
      await this.race([{ do: "recover", calls: orphans(this.model) }]);
      await Promise.all(slow);
      const logs = new Map(await Promise.all(sessions.map(async (id) => [id, await readLog(id)] as const)));
      await endStreams(logs);
      checkLogs(logs);
      for (const { sessionId, callId, after, events } of clients.streams) {
        const wanted = logs.get(sessionId)?.slice(after) ?? [];
        expect(events).toEqual(callId === undefined ? wanted : wanted.filter((event) => callOf(event) === callId));
      }
      const settled = [...logs.values()].flat().map(({ event }) => event.value);
      for (const winner of clients.reportedWinners) expect(settled).toContainEqual(winner);
      await checkNotices(new Set([...logs.values()].flatMap(askedIn)));
      expect(replicas.errors).toEqual([]);
      const reported = replicas.ends.toSorted();
      expect(reported, "no end is reported twice").toEqual([...new Set(reported)]);
      if (replicas.allLive())
        expect(reported, "each end is reported").toEqual([...logs.values()].flatMap(endedIn).toSorted());
    },

    async stop(): Promise<void> {
      clients.leave();
      await replicas.stop();
    },
  };

  /** Ends the streams: those of calls end by themselves, those of sessions after the last event. */
  async function endStreams(logs: ReadonlyMap<string, readonly SessionEvent[]>): Promise<void> {
    const isDone = ({ sessionId, callId, isOver, lastSeq }: (typeof clients.streams)[number]) =>
      isOver || (callId === undefined && lastSeq >= (logs.get(sessionId)?.length ?? 0));
    const areDone = await comes(
      async () => clients.streams.every(isDone),
      () => Promise.resolve(),
    );
    clients.leave();
    await Promise.all(clients.streams.map(({ done }) => done));
    expect(areDone, "every stream comes to its end").toBe(true);
  }

  /** Each request had its notices: what was announced was reported as settled, last, and what was never sent is not sent any more. */
  async function checkNotices(asked: ReadonlySet<string>): Promise<void> {
    await replicas.outliveTheDead();
    const { notices } = replicas.any();
    while ((await notices.countNotices()).has("any")) await replicas.each(({ deliver }) => deliver());
    const listed = (await notices.listNotices()).map(({ ask, channel, state }) => `${ask} ${channel} ${state}`);
    expect(listed.toSorted()).toEqual(
      [...asked].flatMap((ask) => [`${ask} any closed`, `${ask} own settled`]).toSorted(),
    );
    for (const [ask, phases] of replicas.delivered)
      expect(phases.join(" "), ask).toMatch(/^(opened )*settled( settled)*$/);
  }

  async function readLog(sessionId: string): Promise<SessionEvent[]> {
    const { store } = replicas.any();
    const events: SessionEvent[] = [];
    for (;;) {
      const page = await store.calls.readLog(sessionId, events.length, 256 * 1024);
      events.push(...page.events);
      if (page.events.length === 0) return events;
    }
  }
}

/** Returns the calls whose end is in a log, as an observer reports them. */
function endedIn(log: readonly SessionEvent[]): string[] {
  return log.flatMap(({ event }) =>
    event.case === "part" && isTerminal(event.value) ? [`${event.value.sessionId} ${event.value.callId}`] : [],
  );
}

/** Returns the requests that were opened in a log. */
function askedIn(log: readonly SessionEvent[]): string[] {
  return log.flatMap(({ event }) => (event.case === "permissionAsked" ? [event.value.id] : []));
}

const isSlow = (act: Act) => act.do === "cancel" || act.do === "close";

function checkLogs(logs: ReadonlyMap<string, readonly SessionEvent[]>): void {
  const wideKeys = new Set([...logs.values()].flatMap(wideKeysOf));
  for (const [id, log] of logs) {
    expect(brokenPromises(log), id).toEqual([]);
    if (roots[id] === id) expect(unapproved(log, wideKeys), id).toEqual([]);
  }
}

/** Returns the open calls whose replica is dead. */
export function orphans({ calls }: Model): string[] {
  return Object.keys(calls).filter((id) => calls[id]?.phase !== "ended" && calls[id]?.owner === "");
}

/** Thrown when no order of the deeds leads to the observed state. */
class Surprise extends Error {
  override name = "Surprise";
  constructor(deeds: readonly Deed[], seen: string, allowed: readonly string[]) {
    const done = deeds.map(({ act, response }) => `  ${JSON.stringify(act)} -> ${response}`);
    super(
      ["At the same time:", ...done, "Seen:", seen, "Explained would be:", allowed.join("\nor\n") || "nothing"].join(
        "\n",
      ),
    );
  }
}
