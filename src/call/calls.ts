import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { CreateSessionRequest } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type CallToolRequest, CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { newId } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import type { Registry } from "../tool/registry.ts";
import type { TraceContext } from "../tool/tool.ts";
import { createChildren, type StartGate, startsWithOthers } from "./children.ts";
import { CallEnd, CallGone } from "./ends.ts";
import type { Executor } from "./executor.ts";
import { createBell, createFilling, type FollowedEvent, followLog, madeEvent } from "./log.ts";
import type { CallRecord, CallStore, OutputStore } from "./ports.ts";
import { digestOfRequest } from "./request-digest.ts";
import type { Ready } from "./running.ts";
import { checkSize, type KnownSession, type OpenSession, type SessionAccess, type Sessions } from "./sessions.ts";
import { failed, isTerminal, pendingPart } from "./state.ts";

/** What CallTool and ExecuteTool have in common. */
export type CallRequest = Pick<
  CallToolRequest,
  | "sessionId"
  | "messageId"
  | "callId"
  | "agent"
  | "tool"
  | "input"
  | "metadata"
  | "timeoutMs"
  | "providerId"
  | "modelId"
  | "definitionId"
  | "expectedStoreId"
>;

export interface CallLimits {
  inputBytes: number;
  runningCalls: number;
  leaseMs: number;
}

export type Calls = ReturnType<typeof createCalls>;

/** A call that is not taken by any replica for this long is given up. */
const unclaimedMs = 60_000;
const lostWhileRunning = (times: number) =>
  `The executor stopped responding while the tool ran. It ran at most ${times > 1 ? `${times} times` : "once"}; it may have had none, some or all of its effects. It is not run again: look at what it did before you repeat it.`;
const nobodyTookIt = "No replica took the call up again after its executor stopped responding. It was not run.";
/** How often the body of an idempotent tool may be entered, all in all. */
const idempotentAttempts = 3;
/** The whole life of a call, waits for people included. */
const lifeMs = 24 * 3_600_000;

/** Accepts calls, attaches to them, follows and ends them; takes over what another process left behind. */
export function createCalls({
  store,
  outputs,
  sessions,
  permissions,
  asksOf,
  executor,
  registry,
  replicaId,
  limits,
  log,
}: {
  store: CallStore;
  outputs: OutputStore;
  sessions: Sessions;
  permissions: Permissions;
  asksOf(call: CallRef): Promise<AskRecord[]>;
  executor: Executor;
  registry: Registry;
  replicaId: string;
  limits: CallLimits;
  log: Logger;
}) {
  const filling = createFilling(outputs);
  const runs = new Map<string, Run>();
  /** Calls that are being accepted or claimed: ours for the store already, but not in `runs` yet. */
  const taking = new Map<string, Promise<void>>();
  /** Sessions in which something happened since cancel requests were looked for. */
  const news = new Set<string>();
  const stopNews = store.isShared ? store.onNews(undefined, (sessionId) => news.add(sessionId)) : () => undefined;
  let draining = false;
  /** What may yet launch a call: a drain waits for it first, so that it sees all there are. */
  const launching = new Set<Promise<unknown>>();

  async function beforeDrain<T>(work: Promise<T>): Promise<T> {
    launching.add(work);
    try {
      return await work;
    } finally {
      launching.delete(work);
    }
  }

  /** Runs a call that this replica holds, on its own signal: what becomes of the request does not matter to it. */
  function launch(
    record: CallRecord,
    opened: OpenSession,
    confirmed: number,
    { ready, gate }: { ready?: Ready | undefined; gate?: StartGate | undefined } = {},
  ): void {
    const key = keyOf(record.ref);
    const controller = new AbortController();
    const run = {
      ref: record.ref,
      accepted: record.spec.accepted,
      controller,
      confirmed,
      started: record.part.state.case !== "pending",
    };
    const hold = {
      gate,
      isSure: () => isHeld(run),
      starting: () => {
        run.started = true;
      },
    };
    const done = executor.run(record, opened, controller, hold, ready).finally(() => {
      if (runs.get(key)?.controller === controller) runs.delete(key);
    });
    runs.set(key, Object.assign(run, { done }));
  }

  function isTaken(ref: CallRef): boolean {
    return runs.has(keyOf(ref)) || taking.has(keyOf(ref));
  }

  /** Keeps a call from being looked after as nobody's until whoever takes it has gone on, in the same turn, to launch it. */
  async function take<T>(ref: CallRef, step: () => Promise<T>): Promise<T> {
    const key = keyOf(ref);
    const { promise: taken, resolve } = Promise.withResolvers<void>();
    taking.set(key, taken);
    return await step().finally(() =>
      setImmediate(() => {
        if (taking.get(key) === taken) taking.delete(key);
        resolve();
      }),
    );
  }

  /** Whether our lease on a call is sure to be alive: counted by our own clock from when we asked for it. */
  function isHeld({ confirmed }: Pick<Run, "confirmed">): boolean {
    return !store.isShared || performance.now() < confirmed + limits.leaseMs * 0.8;
  }

  /** Accepts a call, or attaches to the one of that id. */
  async function open(principal: Principal, request: CallRequest, trace?: TraceContext): Promise<Accepted> {
    checkServing();
    return await beforeDrain(accept(principal, request, trace));
  }

  function checkServing(): void {
    if (draining)
      throw new RequestError(
        ErrorReason.DRAINING,
        "this replica is going away; try again, at another one or in a moment",
      );
  }

  async function accept(principal: Principal, request: CallRequest, trace?: TraceContext): Promise<Accepted> {
    sessions.checkStore(request.expectedStoreId);
    checkSize("metadata", request.metadata, 64 * 1024);
    const opened = await sessions.open(principal, request.sessionId || (await newSession(principal)), "call");
    const agent = sessions.agentFor(principal, request.agent, opened.session);
    return await enter({ ...request, agent }, opened, principal.id, { trace });
  }

  /** Accepts a call in a session that was opened for it, as an agent that may be used. */
  async function enter(
    request: CallRequest,
    opened: OpenSession,
    principal: string,
    { gate, trace }: { gate?: StartGate | undefined; trace?: TraceContext | undefined } = {},
  ): Promise<Accepted> {
    const input = request.input ?? {};
    const canonical = canonicalJson(input);
    if (Buffer.byteLength(canonical) > limits.inputBytes) checkSize("input", input, limits.inputBytes);
    const now = store.now();
    const callId = request.callId || newId("call", now);
    const requestDigest = digestOfRequest(request.tool, canonical);
    const call = {
      ref: { root: opened.session.rootSessionId, sessionId: opened.session.id, callId },
      part: pendingPart({
        id: newId("prt", now),
        sessionId: opened.session.id,
        messageId: request.messageId || newId("msg", now),
        callId,
        tool: request.tool,
        agent: request.agent,
        input,
        ...(request.metadata && { metadata: request.metadata }),
      }),
      spec: {
        principal,
        requestDigest,
        timeoutMs: request.timeoutMs,
        providerId: request.providerId,
        modelId: request.modelId,
        definitionId:
          request.definitionId ||
          (registry.get(request.tool, workspaceRoot(opened.workspace.name))?.definition.definitionId ?? ""),
        accepted: now,
        ...(trace && { trace }),
      },
    };
    const ready = gate ? undefined : await executor.prepare(call, opened);
    const asked = performance.now();
    const { record, created } = await take(call.ref, () =>
      store.openCall({
        ...call,
        start: ready?.start,
        decisions: ready && [ready.decision],
        maxRepeats: ready?.maxRepeats,
        owner: replicaId,
        leaseMs: limits.leaseMs,
        maxOpenCalls: limits.runningCalls,
      }),
    );
    if (created) launch(record, opened, asked, { ready: record.attempts > 0 ? ready : undefined, gate });
    else checkAttach(record, requestDigest);
    return { record, opened };
  }

  async function newSession(principal: Principal): Promise<string> {
    const request: CreateSessionRequest = create(CreateSessionRequestSchema);
    return (await sessions.create(principal, request)).id;
  }

  async function getRecord(
    principal: Principal,
    sessionId: string,
    callId: string,
    access: SessionAccess,
  ): Promise<{ record: CallRecord; opened: KnownSession }> {
    const opened = await sessions.look(principal, sessionId, access);
    const record = await store.getCall(sessionId, callId);
    if (!record) {
      throw new RequestError(ErrorReason.NO_SUCH_CALL, `session ${sessionId} has no call ${callId}`, {
        session_id: sessionId,
        call_id: callId,
      });
    }
    return { record, opened };
  }

  /** The call when it has ended, or as it is after a while. */
  async function wait(
    { ref }: Pick<CallRecord, "ref">,
    ms: number,
    signal: AbortSignal,
  ): Promise<Pick<CallRecord, "ref" | "part">> {
    const until = performance.now() + ms;
    const run = runs.get(keyOf(ref));
    // A call that runs here is waited for itself, not by looking at every event of its session.
    const part = run && (await settledOr(run.done, ms, signal));
    if (part) return { ref, part };
    const bell = createBell();
    const off = store.onNews(ref.sessionId, bell.ring);
    try {
      for (;;) {
        const record = await store.getCall(ref.sessionId, ref.callId);
        if (!record) throw new Error(`call ${ref.callId} is gone while it was waited for`);
        const left = until - performance.now();
        if (isTerminal(record.part) || left <= 0) return record;
        await bell.wait(left, signal);
      }
    } finally {
      off();
    }
  }

  /** The call's events after a number, until its terminal state. */
  async function* events(
    { record }: { record: CallRecord },
    afterSeq: number,
    signal: AbortSignal,
  ): AsyncGenerator<FollowedEvent> {
    if (isTerminal(record.part) && afterSeq >= Number(record.part.revision)) {
      yield { lastSeq: afterSeq };
      return;
    }
    const { sessionId, callId, root } = record.ref;
    const from = Math.max(afterSeq, record.openedSeq - 1);
    for await (const followed of filling.from(followLog(store, { sessionId, afterSeq: from, callId }, signal), root)) {
      yield followed;
      if (endsCall(followed.event)) return;
    }
  }

  /** Ends a call: CANCELLED. Returns it when that is recorded; a call that has ended is returned as it is. */
  async function cancel(ref: CallRef, message: string): Promise<ToolPart> {
    const words = message === "" ? "The call was cancelled." : message;
    for (;;) {
      const record = await store.getCall(ref.sessionId, ref.callId);
      if (!record) throw new Error(`call ${ref.callId} is gone while it was cancelled`);
      if (isTerminal(record.part)) return record.part;
      const run = runs.get(keyOf(ref));
      if (record.part.state.case === "pending") {
        const part = failed(record.part, { reason: ToolErrorReason.CANCELLED, error: words }, store.now());
        if (await store.finishCall({ ref, guard: { version: record.version }, part }))
          run?.controller.abort(new CallGone());
        continue;
      }
      if (run) {
        run.controller.abort(new CallEnd(ToolErrorReason.CANCELLED, words));
        await run.done;
        continue;
      }
      // Just accepted or claimed here: in a moment it runs, and can be stopped as what runs.
      const taken = taking.get(keyOf(ref));
      if (taken) {
        await taken;
        continue;
      }
      await store.requestCancel(ref, words);
      await wait(record, 60_000, new AbortController().signal);
    }
  }

  /** What another process left behind: what was started is lost, the rest is taken up where it stood. */
  async function recover(): Promise<void> {
    await permissions.expireAsks();
    for (const { record, started, openAsks, since } of await store.orphans(100)) {
      if (isTaken(record.ref)) continue;
      if (openAsks === 0 && (await beforeDrain(claim(record)))) continue;
      if (started) await lose(record, lostWhileRunning(record.attempts));
      else if (openAsks === 0 && store.now() - since > unclaimedMs)
        await lose(record, record.attempts > 0 ? lostWhileRunning(record.attempts) : nobodyTookIt);
    }
  }

  async function lose(record: CallRecord, error: string): Promise<void> {
    const part = failed(record.part, { reason: ToolErrorReason.EXECUTOR_LOST, error }, store.now());
    await store.finishCall({ ref: record.ref, guard: { version: record.version }, part });
  }

  /** Takes a call over if this replica serves its workspace and its tool's definition, and the tool may be entered once more. */
  async function claim({ ref, part, spec, attempts }: CallRecord): Promise<boolean> {
    if (draining || attempts >= idempotentAttempts || startsWithOthers(part)) return false;
    const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
      log.warn("a call cannot be taken over: its workspace is not served here", { error: cause, callId: ref.callId });
      return undefined;
    });
    const tool = opened && registry.get(part.tool, workspaceRoot(opened.workspace.name));
    const maxAttempts = tool?.idempotent ? idempotentAttempts : 1;
    if (tool?.definition.definitionId !== spec.definitionId || attempts >= maxAttempts) return false;
    const asked = performance.now();
    const claimed = opened && (await take(ref, () => store.claimCall(ref, replicaId, limits.leaseMs, maxAttempts)));
    if (!claimed) return false;
    launch(claimed, opened, asked);
    return true;
  }

  /** Renews our leases; a call that is no longer ours, or older than a day, is stopped. */
  async function renew(): Promise<void> {
    const before = [...runs];
    const asked = performance.now();
    const held = await store.renewLeases(replicaId, limits.leaseMs);
    const keys = new Set(held.map(keyOf));
    for (const [key, run] of before) {
      if (!keys.has(key)) run.controller.abort(new CallGone());
      run.confirmed = asked;
      if (store.now() - run.accepted > lifeMs)
        run.controller.abort(
          new CallEnd(ToolErrorReason.TIMEOUT, "The call was not done within 24 hours and was stopped."),
        );
    }
    for (const ref of held) if (!runs.has(keyOf(ref))) await beforeDrain(resume(ref, asked));
    // The lease counts from when it was asked for: after an answer that took long, the next regular round may be too late.
    if (performance.now() - asked > limits.leaseMs / 5) await renew();
  }

  /** Ours, and yet nobody runs it: its last step could not be recorded, or its lease had lapsed for a while and nobody took it. */
  async function resume(ref: CallRef, asked: number): Promise<void> {
    const record = await store.getCall(ref.sessionId, ref.callId);
    if (!record || isTerminal(record.part) || record.owner !== replicaId || isTaken(ref) || draining) return;
    if (record.part.state.case === "running") return await lose(record, lostWhileRunning(record.attempts));
    if (startsWithOthers(record.part)) return await lose(record, nobodyTookIt);
    const opened = await sessions.load(ref.sessionId);
    if (opened) launch(record, opened, asked);
  }

  /** Stops what we may no longer hold. It waits for nothing: that the store does not answer is when it matters. */
  async function supervise(): Promise<void> {
    for (const run of runs.values()) if (!isHeld(run)) run.controller.abort(new CallGone());
  }

  /** Stops what was cancelled at another replica; what is not started was ended there. */
  async function heedCancels(): Promise<void> {
    const running = Map.groupBy(runs.values(), ({ started, ref }) => (started ? ref.sessionId : undefined));
    const heard = [...news];
    // News that come while we look are looked at in the next round, with what runs then.
    news.clear();
    for (const sessionId of heard) {
      for (const { ref, controller } of running.get(sessionId) ?? []) {
        const record = await store.getCall(sessionId, ref.callId).catch((cause: unknown) => {
          for (const each of heard) news.add(each);
          throw cause;
        });
        if (record?.cancel !== undefined) controller.abort(new CallEnd(ToolErrorReason.CANCELLED, record.cancel));
      }
    }
  }

  const makeCalls = createChildren({
    async enter({ record: { part, spec }, opened, trace }, { tool, input, callId, gate }) {
      checkServing();
      const request = create(CallToolRequestSchema, {
        sessionId: part.sessionId,
        messageId: part.messageId,
        callId,
        agent: part.agent,
        tool,
        input,
        metadata: { ...part.metadata, parentCallId: part.callId, ...(gate && { startsWithOthers: true }) },
        providerId: spec.providerId,
        modelId: spec.modelId,
      });
      return (await beforeDrain(enter(request, opened, spec.principal, { gate, trace }))).record.ref;
    },
    ended: async (ref) => (await wait({ ref }, lifeMs, new AbortController().signal)).part,
    cancel,
  });

  return {
    open,
    makeCalls,
    wait,
    events,
    getRecord,
    recover,
    renew,
    supervise,
    heedCancels,
    get isDraining() {
      return draining;
    },
    /** See `cancel` above; the principal must own the session, or be admin. */
    async cancel(principal: Principal, sessionId: string, callId: string, message: string): Promise<ToolPart> {
      const { record } = await getRecord(principal, sessionId, callId, "control");
      return await cancel(record.ref, message);
    },
    /** In the order they were accepted. */
    async list(
      principal: Principal,
      filter: { sessionId: string; after?: string; limit: number },
    ): Promise<CallRecord[]> {
      await sessions.look(principal, filter.sessionId, "read");
      return await store.listCalls(filter);
    },
    /** Refuses new calls in a session and its descendants, and cancels the open ones. */
    async closeSession(principal: Principal, sessionId: string): Promise<void> {
      await sessions.look(principal, sessionId, "control");
      const left = await store.closeSession(sessionId);
      await Promise.all(left.map((ref) => cancel(ref, "The session was closed.")));
    },
    /** A session's events after a number; with `snapshot` first what is open now, then events after that. */
    async *watch(
      principal: Principal,
      {
        sessionId,
        afterSeq,
        callId,
        snapshot,
      }: { sessionId: string; afterSeq: number; callId?: string | undefined; snapshot: boolean },
      signal: AbortSignal,
    ): AsyncGenerator<FollowedEvent & { snapshotEnd?: boolean }> {
      const { session } = await sessions.look(principal, sessionId, "read");
      const root = session.rootSessionId;
      let from = afterSeq;
      if (snapshot) {
        // The number is read first: what happens meanwhile is both in the snapshot and sent again, never missed.
        from = Number((await store.getSession(sessionId))?.lastSeq ?? 0n);
        const open = await store.listCalls({ sessionId, open: true, limit: 10_000 });
        for (const { ref, part } of open) {
          if (callId !== undefined && ref.callId !== callId) continue;
          yield { event: madeEvent(sessionId, from, store.now(), { case: "part", value: part }), lastSeq: from };
          for (const { request, settled } of part.permissionIds.length > 0 ? await asksOf(ref) : []) {
            if (!settled)
              yield {
                event: madeEvent(sessionId, from, store.now(), { case: "permissionAsked", value: request }),
                lastSeq: from,
              };
          }
        }
        yield { lastSeq: from, snapshotEnd: true };
      }
      yield* filling.from(followLog(store, { sessionId, afterSeq: from, callId }, signal), root);
    },
    /** Takes no new calls, hands waiting ones back and gives running ones some time, then stops them. */
    async drain(ms: number): Promise<void> {
      draining = true;
      await Promise.allSettled(launching);
      // First: what is still pending afterwards can no longer start here, and what was just starting runs.
      await store.releaseCalls(replicaId);
      for (const { ref, controller } of [...runs.values()]) {
        const record = await store.getCall(ref.sessionId, ref.callId);
        if (record?.part.state.case === "pending") controller.abort(new CallGone());
      }
      await settledWithin(ms, runs);
      for (const { controller } of runs.values()) {
        controller.abort(new CallEnd(ToolErrorReason.CANCELLED, "The service was stopped while the call ran."));
      }
      await Promise.allSettled([...runs.values()].map(({ done }) => done));
      stopNews();
    },
  };
}

interface Accepted {
  record: CallRecord;
  opened: OpenSession;
}

/** A call that runs here. */
interface Run {
  ref: CallRef;
  accepted: number;
  controller: AbortController;
  /** When we last asked for the lease that we got, by our own clock. */
  confirmed: number;
  /** Whether its start mark may be written. */
  started: boolean;
  /** The call as it ended here; undefined if it was not this run that ended it. */
  done: Promise<ToolPart | undefined>;
}

function keyOf({ sessionId, callId }: CallRef): string {
  return `${sessionId} ${callId}`;
}

/** An attaching request must mean the same call. */
function checkAttach({ ref, part, spec, expired }: CallRecord, requestDigest: string): void {
  if (spec.requestDigest !== requestDigest) {
    throw new RequestError(
      ErrorReason.CALL_ID_REUSED,
      `call ${ref.callId} of session ${ref.sessionId} was another one (tool ${part.tool}, other input); nothing was run. Use a new call_id`,
      { call_id: ref.callId, tool: part.tool },
    );
  }
  if (!expired) return;
  throw new RequestError(
    ErrorReason.CALL_EXPIRED,
    `call ${ref.callId} ended (${part.state.case}) and its result is no longer kept; it is not run again`,
    { call_id: ref.callId, state: part.state.case ?? "" },
  );
}

function endsCall(event: SessionEvent | undefined): boolean {
  return event?.event.case === "part" && isTerminal(event.event.value);
}

/** Resolves to what the work does, or to undefined after a while; throws the signal's reason. */
async function settledOr<T>(work: Promise<T>, ms: number, signal: AbortSignal): Promise<T | undefined> {
  signal.throwIfAborted();
  const { promise: over, resolve } = Promise.withResolvers<undefined>();
  const stop = () => resolve(undefined);
  const timer = setTimeout(stop, ms);
  signal.addEventListener("abort", stop, { once: true });
  const result = await Promise.race([work, over]);
  clearTimeout(timer);
  signal.removeEventListener("abort", stop);
  signal.throwIfAborted();
  return result;
}

async function settledWithin(ms: number, runs: ReadonlyMap<string, Pick<Run, "done">>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms);
  });
  await Promise.race([Promise.allSettled([...runs.values()].map(({ done }) => done)), late]);
  clearTimeout(timer);
}
