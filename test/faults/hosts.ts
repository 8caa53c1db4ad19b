import { setTimeout as delay } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import { type AcknowledgedCall, type Answer, type History, newHistory, type Watch } from "./history.ts";
import { createLedger } from "./ledger.ts";
import type { System } from "./system.ts";

/** A call to make. */
export interface Wish {
  sessionId: string;
  callId: string;
  /** The replica to try first. */
  at: number;
  /** True if the call asks; two approvers then answer, at other replicas. */
  asks?: boolean;
  /** The approvers first answer at the two replicas after this one; by default after the one that emitted the ask. */
  answersAfter?: number;
  /** Duration of the command, in steps of 50 ms. */
  ticks?: number;
  /** Awaited before the answers are given. */
  beforeAnswer?: () => Promise<unknown>;
}

export type Hosts = ReturnType<typeof createHosts>;

/**
 * Creates clients that retry failures at the next replica, with the same ids, and record everything. With `mayLose` the store may
 * lose what it acknowledged: they name the store of each session, and an answer to a request that is gone counts as closed.
 */
export function createHosts(system: Pick<System, "at" | "workspace">, { mayLose = false } = {}) {
  const history = newHistory();
  const ledger = createLedger(system.workspace);
  const storeIds = new Map<string, string>();
  const seenFirst = new Map<string, SessionEvent>();
  let ended = 0;

  /**
   * Retries at one replica after the other until success; throws a final refusal. A request hangs if many calls end while it gets no
   * answer, far beyond every lease and fault; if none end, the machine is slow, or everything hangs.
   */
  async function insist<T>(at: number, attempt: (index: number, timeoutMs: number) => Promise<T>): Promise<T> {
    const [begun, endedBefore] = [performance.now(), ended];
    let timeouts = 0;
    for (let index = at; ; index += 1) {
      try {
        return await attempt(index, attemptMs * 2 ** Math.min(3, Math.floor(timeouts / 10)));
      } catch (error) {
        if (!mayPass(error)) throw error;
        if (ConnectError.from(error).code === Code.DeadlineExceeded) timeouts += 1;
        const passed = performance.now() - begun;
        if (passed > (ended - endedBefore > 100 ? hopeMs : 5 * hopeMs))
          throw new Error("the request got no final answer in time", { cause: error });
        await delay(50);
      }
    }
  }

  async function newSession(at = 0): Promise<string> {
    const sessionId = `ses_${crypto.randomUUID()}`;
    const { storeId } = await insist(at, (index, timeoutMs) =>
      system.at(index).as("caller").sessions.createSession({ sessionId }, { timeoutMs }),
    );
    if (mayLose) storeIds.set(sessionId, storeId);
    return sessionId;
  }

  /** Makes a call and reads its events, across lost connections, until its end. */
  async function call(wish: Wish): Promise<ToolPart> {
    const { sessionId, callId, asks = false, ticks = 2, at } = wish;
    const acknowledged: AcknowledgedCall = { sessionId, callId, asks, parts: [] };
    const watch: Watch = { sessionId, callId, events: [] };
    history.calls.push(acknowledged);
    history.watches.push(watch);
    const answering: Promise<unknown>[] = [];
    const from = Date.now();
    const request = {
      ...{ sessionId, callId, tool: "bash", agent: asks ? "build" : "free" },
      input: { command: ledger.command(callId, ticks) },
    };
    let [afterSeq, expectedStoreId] = [0n, storeIds.get(sessionId) ?? ""];
    const end = await insist(at, async (index, timeoutMs) => {
      const { tools } = system.at(index).as("caller");
      const stream = tools.executeTool({ ...request, afterSeq, expectedStoreId }, { timeoutMs });
      for await (const { event, lastSeq, storeId } of stream) {
        expectedStoreId ||= storeId;
        afterSeq = lastSeq;
        if (event) watch.events.push(event);
        if (event) sawEvent(event);
        const part = partOf(event);
        if (part) acknowledged.parts.push(part);
        if (event?.event.case === "permissionAsked") {
          const answers = answerTwice(event.event.value, index, wish);
          answers.catch(() => undefined);
          answering.push(answers);
        }
        if (part && isTerminal(part)) return part;
      }
      throw new ConnectError("the stream ended before the call", Code.Unavailable);
    });
    acknowledged.ended = { from, to: Date.now() };
    await Promise.all(answering);
    ended += 1;
    return end;
  }

  async function answerTwice(ask: PermissionRequest, emittedAt: number, wish: Wish): Promise<void> {
    const { beforeAnswer, answersAfter: at = emittedAt } = wish;
    await beforeAnswer?.();
    await Promise.all([answer(ask, "approver", at + 1), answer(ask, "deputy", at + 2)]);
  }

  /** Sends one answer, under one reply id, until it is acknowledged or refused. */
  async function answer({ id, sessionId }: PermissionRequest, who: "approver" | "deputy", at: number): Promise<Answer> {
    const times = { from: Date.now(), to: Number.POSITIVE_INFINITY };
    const given: Answer = { sessionId, permissionId: id, replyId: `${who} ${id}`, result: "unknown", ...times };
    history.answers.push(given);
    const response = { sessionId, permissionId: id, reply: PermissionReply.ONCE, replyId: given.replyId };
    try {
      await insist(at, (index, timeoutMs) =>
        system.at(index).as(who).permissions.respondToPermission(response, { timeoutMs }),
      );
      Object.assign(given, { result: "won", to: Date.now() });
    } catch (error) {
      const isGone = mayLose && error instanceof ConnectError && gone.has(error.code);
      given.to = Date.now();
      if (isGone) given.result = "closed";
      if (isGone) return given;
      if (!(error instanceof ConnectError) || error.code !== Code.FailedPrecondition) throw error;
      const [settled] = error.findDetails(PermissionSettledSchema);
      given.result = settled === undefined || settled.replyId === "" ? "closed" : "lost";
      if (settled) given.winner = settled.replyId;
    }
    return given;
  }

  function sawEvent({ sessionId, seq }: SessionEvent): void {
    const now = Date.now();
    history.reads.push({ sessionId, from: now, to: now, last: Number(seq), isWhole: false });
  }

  /** Returns the first of equal events, so that many watchers do not fill the memory. */
  function shared(event: SessionEvent): SessionEvent {
    const key = `${event.sessionId} ${event.seq}`;
    const first = seenFirst.get(key) ?? event;
    seenFirst.set(key, first);
    return equals(SessionEventSchema, first, event) ? first : event;
  }

  /** Watches a session until the signal, across lost connections; `onEvent` gets the number of events seen so far. */
  async function watch(
    sessionId: string,
    at: number,
    signal: AbortSignal,
    { onEvent, leavesAfter = Infinity }: { onEvent?: (count: number) => void; leavesAfter?: number | undefined } = {},
  ): Promise<void> {
    const seen: Watch = { sessionId, events: [] };
    history.watches.push(seen);
    let afterSeq = 0n;
    for (let index = at; !signal.aborted; index += 1) {
      const { tools } = system.at(index).as("watcher", 1 + Math.floor(at / 150));
      const until = seen.events.length + leavesAfter;
      // Without this the stream stays open, and one connection carries at most a hundred.
      const leaving = new AbortController();
      const options = { signal: AbortSignal.any([signal, leaving.signal]) };
      try {
        for await (const { event, lastSeq } of tools.watchSession({ sessionId, afterSeq }, options)) {
          afterSeq = lastSeq;
          if (!event) continue;
          seen.events.push(shared(event));
          sawEvent(event);
          onEvent?.(seen.events.length);
          if (seen.events.length >= until) leaving.abort();
        }
      } catch (error) {
        if (options.signal.aborted) continue;
        if (!mayPass(error)) throw error;
        await delay(50);
      }
    }
  }

  /** Reads the whole log of a session from a replica. */
  async function logOf(sessionId: string, at = 0): Promise<SessionEvent[]> {
    const read = insist(at, async (index) => {
      const from = Date.now();
      const { sessions, tools } = system.at(index).as("watcher");
      const last = (await sessions.getSession({ sessionId }, { timeoutMs: hopeMs })).session?.lastSeq ?? 0n;
      const events: SessionEvent[] = [];
      history.reads.push({ sessionId, from, to: Date.now(), last: Number(last), isWhole: true });
      if (last === 0n) return events;
      for await (const { event, lastSeq } of tools.watchSession({ sessionId }, { timeoutMs: hopeMs })) {
        if (event) events.push(event);
        if (lastSeq >= last) return events;
      }
      throw new ConnectError("the stream ended before the log", Code.Unavailable);
    });
    return await read.catch((error: unknown) => {
      if (mayLose && error instanceof ConnectError && gone.has(error.code)) return [];
      throw error;
    });
  }

  return {
    /** Number of ended calls. */
    get ended() {
      return ended;
    },
    newSession,
    call,
    answer,
    watch,
    insist,
    logOf,
    ledger,
    /** Asks for each session again by the store id that its clients know; returns the sessions of which a loss is reported. */
    async changedSessions(): Promise<string[]> {
      const changed: string[] = [];
      for (const [sessionId, expectedStoreId] of storeIds) {
        const request = { sessionId, expectedStoreId };
        const asked = insist(0, (index, timeoutMs) =>
          system.at(index).as("caller").sessions.createSession(request, { timeoutMs }),
        );
        await asked.catch((error: unknown) => {
          if (!(error instanceof ConnectError) || error.code !== Code.DataLoss) throw error;
          changed.push(sessionId);
        });
      }
      return changed;
    },
    /** Reads logs and ledger, at the end. */
    async finish(): Promise<History> {
      for (const sessionId of new Set([...history.calls, ...history.watches].map((each) => each.sessionId)))
        history.logs.set(sessionId, await logOf(sessionId));
      history.ledger = await ledger.lines();
      return history;
    },
  };
}

/** Codes of requests about what a store has lost. */
const gone: ReadonlySet<Code> = new Set([Code.NotFound, Code.DataLoss]);

/** Time limit of the first attempts: a frozen or disconnected replica does not report an error. */
const attemptMs = 4_000;
const hopeMs = 120_000;

function partOf(event: SessionEvent | undefined): ToolPart | undefined {
  return event?.event.case === "part" ? event.event.value : undefined;
}

/** Returns true for an error after which a retry may succeed: the outcome is unknown, or the request was not applied. */
function mayPass(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return false;
  // HTTP/2: a stream after GOAWAY was not processed.
  if (error.message.includes("REFUSED_STREAM")) return true;
  // On a busy machine the analysis of a few command lines takes the time that a caller may use.
  const passing: readonly Code[] = [
    ...[Code.Unavailable, Code.Aborted, Code.Canceled, Code.DeadlineExceeded, Code.ResourceExhausted],
  ];
  return passing.includes(error.code);
}
