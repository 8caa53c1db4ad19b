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

/** The real thing beside its model. */
export type World = Awaited<ReturnType<typeof createWorld>>;

/** A root with a child, and another root. */
const roots: Readonly<Record<string, string>> = { ses_a: "ses_a", ses_child: "ses_a", ses_b: "ses_b" };
const sessions = Object.keys(roots);
/** Far longer than anything takes: by then it will never come to rest as it should. */
const patienceMs = 5_000;

/** Starts replicas and clients; what they do from then on is held against the model. */
export async function createWorld(setting: Setting) {
  const bell = createBell();
  const ledger = createLedger(bell.ring);
  const replicas = await startReplicas(setting, { toolsOf: ledger.tools, onNews: bell.ring });
  const observer = createObserver({ replicas, ledger, sessions });
  const clients = createClients({ replicas, ledger, names: observer.names, onEvent: bell.ring });
  /** What is told only when a call has ended, and that may take until the dead are looked for. */
  const slow: Promise<unknown>[] = [];
  /** All that it may be, going by what was seen. */
  const nothing: Model = { roots, closed: [], live: replicas.names(), calls: {}, grants: {} };
  let possible: readonly Model[] = [nothing];

  for (const [id, root] of Object.entries(roots)) {
    const parentSessionId = id === root ? "" : root;
    const request = create(CreateSessionRequestSchema, { sessionId: id, parentSessionId });
    await replicas.any().sessions.create(agent, request);
    await clients.watch(id, 0);
  }

  /** Waits for something that shows in the log or in the ledger, while replicas look after their calls; false if it does not come. */
  async function comes(check: () => Promise<boolean>, look: (replica: Replica) => Promise<void>): Promise<boolean> {
    const late = AbortSignal.timeout(patienceMs);
    while (!late.aborted) {
      await replicas.each(look);
      if (await check()) return true;
      // Where nothing happens time goes on, until what a replica has let go of can be taken up by others.
      if ((await bell.wait(200, new AbortController().signal)) === "quiet") await replicas.outliveTheDead();
    }
    return false;
  }

  async function perform(acts: readonly Act[]): Promise<Deed[]> {
    const deeds = acts.map((act): Deed => ({ act, told: "ok" }));
    const waits = deeds.map(async (deed) => {
      deed.told = await clients.perform(deed.act);
    });
    const done = (which: (act: Act) => boolean) => waits.filter((_, i) => acts.slice(i, i + 1).some(which));
    slow.push(...done(isSlow));
    await Promise.all(done((act) => !isSlow(act)));
    // What was asked of a replica that is dead now is answered: lost, if not before.
    await Promise.all(done((act) => "at" in act && !replicas.names().includes(act.at)));
    return deeds;
  }

  return {
    /** One of those that it may be; all look alike. */
    get model(): Model {
      return possible[0] ?? nothing;
    },
    nextReplica: replicas.nextName,
    watch: clients.watch,

    /** Does all of it at the same time, and holds against the model how it comes to rest. */
    async race(acts: readonly Act[]): Promise<void> {
      const deeds = await perform(acts);
      if (acts.some((act) => act.do === "kill")) await replicas.outliveTheDead();
      const allowed = Map.groupBy(outcomes(possible, deeds), view);
      let seen = "not looked at: what was told cannot be";
      // One look may be in vain, if a call changes under it; the service looks every second.
      const isLooking = acts.some((act) => act.do === "recover" || act.do === "freeze");
      const cameToRest =
        allowed.size > 0 &&
        (await comes(
          async () => {
            seen = await observer.look();
            return allowed.has(seen);
          },
          async ({ calls }) => {
            await calls.supervise();
            await calls.handleCancels();
            if (isLooking) await calls.recover();
          },
        ));
      if (!cameToRest) throw new Surprise(deeds, seen, [...allowed.keys()]);
      possible = allowed.get(seen) ?? [];
    },

    /** Ends everything, and checks what has to hold whatever happened. */
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
      for (const winner of clients.toldWinners) expect(settled).toContainEqual(winner);
      expect(replicas.errors).toEqual([]);
      const told = replicas.ends.toSorted();
      expect(told, "no end is told twice").toEqual([...new Set(told)]);
      if (replicas.allLive()) expect(told, "each end is told").toEqual([...logs.values()].flatMap(endedIn).toSorted());
    },

    async stop(): Promise<void> {
      clients.leave();
      await replicas.stop();
    },
  };

  /** Streams of calls end by themselves, those of sessions when they have told all. */
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

/** The calls whose end is in a log, as a replica is told of them. */
function endedIn(log: readonly SessionEvent[]): string[] {
  return log.flatMap(({ event }) =>
    event.case === "part" && isTerminal(event.value) ? [`${event.value.sessionId} ${event.value.callId}`] : [],
  );
}

const isSlow = (act: Act) => act.do === "cancel" || act.do === "close";

function checkLogs(logs: ReadonlyMap<string, readonly SessionEvent[]>): void {
  const wideKeys = new Set([...logs.values()].flatMap(wideKeysOf));
  for (const [id, log] of logs) {
    expect(brokenPromises(log), id).toEqual([]);
    if (roots[id] === id) expect(unapproved(log, wideKeys), id).toEqual([]);
  }
}

/** The calls whose replica is dead. */
export function orphans({ calls }: Model): string[] {
  return Object.keys(calls).filter((id) => calls[id]?.phase !== "ended" && calls[id]?.owner === "");
}

/** The service came to rest, or failed to, where no order of what was done leads. */
class Surprise extends Error {
  override name = "Surprise";
  constructor(deeds: readonly Deed[], seen: string, allowed: readonly string[]) {
    const done = deeds.map(({ act, told }) => `  ${JSON.stringify(act)} -> ${told}`);
    super(
      ["At the same time:", ...done, "Seen:", seen, "Explained would be:", allowed.join("\nor\n") || "nothing"].join(
        "\n",
      ),
    );
  }
}
