import { hash } from "node:crypto";
import { create, type JsonObject, toBinary } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { StopRecord, StopTarget } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { type PermissionResponse, type ToolPart, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type BeginCallRequest,
  BeginCallRequestSchema,
  type FinishCallRequest,
  FinishCallRequestSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import type { FileRules } from "../policy/file-rules.ts";
import type { RemoteCall, RemoteMark } from "../tool/remote.ts";
import type { TraceContext } from "../tool/tool.ts";
import { type Accepted, acceptCall, type CallRequest, makeCalls, startBackground } from "./accept.ts";
import { type Adoption, adoptCall, restartUnentered } from "./adopt.ts";
import { answerAsk } from "./answer.ts";
import { type BeginOutcome, beginCall, beginHosted } from "./begin.ts";
import { cancelCall, closeSession, handleCancels } from "./cancel.ts";
import { cancelCallsOf, type NewChildSession, openChildSession } from "./child-sessions.ts";
import { claimAnnounced, claimQueued, claimWaiting } from "./claims.ts";
import { checkServing, type Engine, type EngineParts } from "./engine.ts";
import { finishDelegated } from "./finish-delegated.ts";
import { callEvents, type WatchOptions, waitForEnd, watchSession } from "./follow.ts";
import { drainCalls, recoverCalls, renewLeases, stopLapsedRuns } from "./leases.ts";
import { createFilling, createWaits, type FollowedEvent } from "./log.ts";
import { resumeParent, resumeParentOf } from "./parents.ts";
import type { CallFilter, CallRecord } from "./ports.ts";
import { createReview } from "./rebind.ts";
import { untilRecorded } from "./record-once.ts";
import { runKeyOf } from "./running.ts";
import type { KnownSession, SessionAccess } from "./sessions.ts";
import { enforceStops, resumeCalls, stopCalls } from "./stops.ts";
import { countQueued, createSlots } from "./waiting.ts";

/** Calls of one replica, as the edge and the timers use them. */
export type Calls = ReturnType<typeof createCalls>;

/** Creates an engine without runs. */
function createEngine(parts: EngineParts): Engine {
  const { outputs, store } = parts;
  const sessionsWithNews = new Set<string>();
  const subscriptions = store.isShared
    ? [
        store.onNews(undefined, (sessionId) => sessionsWithNews.add(sessionId)),
        store.onUnclaimed((ref) => claimAnnounced(engine, ref)),
      ]
    : [];
  const engine: Engine = {
    ...parts,
    runs: new Map(),
    claiming: new Map(),
    unrecorded: new Map(),
    unentered: new Map(),
    unsettled: new Set(),
    unstored: new Set(),
    launching: new Set(),
    sessionsWithNews,
    stopNews() {
      for (const unsubscribe of subscriptions) unsubscribe();
    },
    isDraining: false,
    filling: createFilling(outputs),
    waits: createWaits(store),
    slots: createSlots(),
    review: createReview(),
    workerQueue: new Map(),
    formerReads: new Map(),
    queuedCounts: { now: new Map(), before: new Map() },
    claimingQueued: new Map(),
    whenFree: () => claimWaiting(engine),
    whenWorkerFree: () => claimQueued(engine),
    makeCalls,
    resumeParent,
  };
  return engine;
}

/** Creates an engine and returns what the edge and the timers may do with it. Access to sessions is checked here. */
export function createCalls(parts: EngineParts) {
  const engine = createEngine(parts);
  const { sessions, store } = engine;

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

  /** Returns a call of a session that the principal owns, or as an admin, once it is recorded. */
  async function getOwn(principal: Principal, sessionId: string, callId: string): Promise<CallRecord> {
    await untilRecorded(engine, sessionId, callId);
    return (await getRecord(principal, sessionId, callId, "control")).record;
  }

  return {
    open: (principal: Principal, request: CallRequest, trace?: TraceContext) =>
      acceptCall(engine, principal, request, trace),
    /** Accepts a call that its host runs, or attaches to it, and waits for the decision. */
    begin: (principal: Principal, request: BeginCallRequest, signal: AbortSignal, trace?: TraceContext) =>
      beginCall(engine, principal, request, signal, trace),
    /** Ends a call that its host ran with the reported result. */
    finish: (principal: Principal, request: FinishCallRequest) => finishDelegated(engine, principal, request),
    /** Settles an ask with an approver's answer; starts the call in the same step where that is possible. */
    answer: (principal: Principal, workspace: string, response: PermissionResponse) =>
      answerAsk(engine, principal, workspace, response),
    /** Goes on with a call whose body a worker has entered that is connected to this replica. */
    adopt: (call: RemoteCall, mark: RemoteMark): Promise<Adoption> => adoptCall(engine, call, mark),
    /** Gives a call back whose body its worker has not entered; returns false if the worker's run is not the call's any more. */
    restartUnentered: (call: RemoteCall, mark: RemoteMark) => restartUnentered(engine, call, mark),
    /** Claims calls that wait for a worker; called when one of this replica may have capacity. */
    takeQueued: () => claimQueued(engine),
    countQueued: (definitionId: string) => countQueued(engine, definitionId),
    /** Calls of agents that this service started. */
    ownTools: ownToolCallsOf(engine),
    getRecord,
    /** Finds a call of a session that the principal owns, in the store that the caller expects. */
    async find(
      principal: Principal,
      { sessionId, callId, expectedStoreId }: Pick<CallRequest, "sessionId" | "callId" | "expectedStoreId">,
    ): Promise<CallRecord> {
      await sessions.openExpected(principal, sessionId, expectedStoreId);
      return await getOwn(principal, sessionId, callId);
    },
    wait: (call: Pick<CallRecord, "ref" | "part">, ms: number, signal: AbortSignal) =>
      waitForEnd(engine, call, ms, signal),
    events: (call: Pick<Accepted, "record">, afterSeq: number, signal: AbortSignal) =>
      callEvents(engine, call, afterSeq, signal),
    /** Returns the root of the tree of a session that the principal may read. */
    async rootOf(principal: Principal, sessionId: string): Promise<string> {
      return (await sessions.look(principal, sessionId, "read")).session.rootSessionId;
    },
    async *watch(
      principal: Principal,
      watch: WatchOptions,
      signal: AbortSignal,
    ): AsyncGenerator<FollowedEvent & { snapshotEnd?: boolean }> {
      const { session } = await sessions.look(principal, watch.sessionId, "read");
      yield* watchSession(engine, session.rootSessionId, watch, signal);
    },
    /** Lists calls in the order in which they were accepted: fewer than `limit` where they are large. `next` is the token of the last one if there may be more. */
    async list(
      principal: Principal,
      { sessionId, after, limit }: { sessionId: string; after?: string; limit: number },
    ): Promise<{ parts: ToolPart[]; next?: string }> {
      await sessions.look(principal, sessionId, "read");
      const parts: ToolPart[] = [];
      let [last, bytes] = [after === undefined ? undefined : decodePlace(after), 0];
      while (parts.length < limit && bytes < maxListedBytes) {
        const count = Math.min(limit - parts.length, listedAtOnce);
        const page = await store.listCalls({ sessionId, limit: count, ...(last && { after: last }) });
        for (const { part } of page) bytes += toBinary(ToolPartSchema, part).byteLength;
        parts.push(...page.map(({ part }) => part));
        if (page.length < count) return { parts };
        last = page.at(-1);
      }
      return { parts, ...(last && { next: `${last.openedSeq}:${last.ref.callId}` }) };
    },
    /** Cancels a call of a session that the principal owns, or as an admin. */
    async cancel(principal: Principal, sessionId: string, callId: string, message: string): Promise<ToolPart> {
      return await cancelCall(engine, (await getOwn(principal, sessionId, callId)).ref, message);
    },
    async closeSession(principal: Principal, sessionId: string): Promise<void> {
      await sessions.look(principal, sessionId, "control");
      await closeSession(engine, sessionId);
    },
    /** Steps for tools that start subagents and calls in the background. */
    background: backgroundCallsOf(engine),
    openChildSession: (child: NewChildSession) => openChildSession(engine, child),
    cancelCallsOf: (sessionId: string, reason: string) => cancelCallsOf(engine, sessionId, reason),
    /** Called when this replica has recorded the end of a call. */
    ended: (part: ToolPart) => resumeParentOf(engine, part),
    /** Stops an agent, a session or everything, and ends what is open of it. */
    stop: (principal: Principal, stop: { target: StopTarget; reason: string }) => stopCalls(engine, principal, stop),
    resume: (principal: Principal, target: StopTarget) => resumeCalls(engine, principal, target),
    stops: (): readonly StopRecord[] => engine.stops.current(),
    enforceStops: () => enforceStops(engine),
    renew: () => renewLeases(engine),
    recover: () => recoverCalls(engine),
    stopLapsed: () => stopLapsedRuns(engine),
    handleCancels: () => handleCancels(engine),
    drain: (ms: number) => drainCalls(engine, ms),
  };
}

/** Returns the calls of an engine that go on after the call that made them has ended, for tools of the service. */
function backgroundCallsOf(engine: Engine) {
  const { runs, sessions, store } = engine;

  async function recordOf({ sessionId, callId }: Pick<CallRef, "sessionId" | "callId">): Promise<CallRecord> {
    const record = await store.getCall(sessionId, callId);
    if (record) return record;
    throw new Error(`call ${callId} of session ${sessionId} is gone`);
  }

  return {
    async start(
      parent: Pick<CallRef, "sessionId" | "callId">,
      call: { tool: string; input: JsonObject },
    ): Promise<string> {
      const [record, opened] = [await recordOf(parent), await sessions.load(parent.sessionId)];
      if (!opened) throw new Error(`session ${parent.sessionId} is gone`);
      return (await startBackground(engine, { record, opened }, call)).callId;
    },
    async find({ sessionId, callId }: Pick<CallRef, "sessionId" | "callId">): Promise<ToolPart | undefined> {
      const record = await store.getCall(sessionId, callId);
      return record?.part.background && !record.expired ? record.part : undefined;
    },
    async wait(call: Pick<CallRef, "sessionId" | "callId">, ms: number, signal: AbortSignal): Promise<ToolPart> {
      return (await waitForEnd(engine, await recordOf(call), ms, signal)).part;
    },
    shown: (call: Pick<CallRef, "sessionId" | "callId">) =>
      runs.get(runKeyOf({ root: "", ...call }))?.call.progress?.shown ?? {},
    async lastTool(sessionId: string): Promise<string | undefined> {
      const session = await store.getSession(sessionId);
      const from = Math.max(0, Number(session?.lastSeq ?? 0n) - lookBack);
      const { events } = await store.readLog(sessionId, from, lookBackBytes);
      const last = events.findLast(({ event }) => event.case === "part");
      return last?.event.case === "part" ? last.event.value.tool : undefined;
    },
    async openCalls(sessionId: string): Promise<ToolPart[]> {
      return (await store.listCalls({ sessionId, open: true, limit: 10_000 })).map(({ part }) => part);
    },
    async cancel(call: Pick<CallRef, "sessionId" | "callId">, reason: string): Promise<ToolPart> {
      return await cancelCall(engine, (await recordOf(call)).ref, reason);
    },
  };
}

/** Reads the token of a page of calls; one of an earlier version is the id of a call alone. */
function decodePlace(token: string): NonNullable<CallFilter["after"]> {
  const [, seq = "0", callId = token] = /^(\d{1,15}):(.*)$/s.exec(token) ?? [];
  return { ref: { callId }, openedSeq: Number(seq) };
}

/** Bytes of calls after which a page of them ends, and calls that are read at once: each may have an input of `input_bytes`. */
const maxListedBytes = 8 * 1024 * 1024;
const listedAtOnce = 25;

/** Events at the end of a session's log in which its last call is looked for. */
const lookBack = 100;
const lookBackBytes = 262_144;

/** An agent that this service started for a call, and the session in which it makes its calls. */
interface StartedAgent {
  parentCall: CallRef;
  childSession: string;
}

/** A use of one of the agent's own tools. */
interface OwnUse {
  /** Kind of the agent. */
  kind: string;
  tool: string;
  callId: string;
  input: JsonObject;
  /** Canonical directory in which the agent works. */
  cwd: string;
}

/** Delegated calls of agents that this service started: they see the same files, and their session exists. */
function ownToolCallsOf(engine: Engine) {
  const { layersFor, policy, sessions, store } = engine;

  /** Returns the caller of the call that started the agent: calls of the agent are that principal's. */
  async function principalOf({ parentCall: { sessionId, callId } }: StartedAgent): Promise<Principal> {
    const record = await store.getCall(sessionId, callId);
    if (!record) throw new Error(`call ${callId} of session ${sessionId} is gone`);
    const { principal: id, person = id } = record.spec;
    const { callerUid: user, person: behind } = record.part;
    const rights = { roles: new Set(["caller"] as const), agents: ["*"], workspaces: ["*"] };
    return { id, ...rights, lineage: [person], behind, answersOwn: false, ...(user !== undefined && { user }) };
  }

  return {
    principalOf,
    /** Returns the rules about files in the agent's session, without anything that a single call was allowed. */
    async fileRulesOf(agent: StartedAgent, name: string): Promise<FileRules> {
      const { session, ancestors, workspace } = await sessions.open(
        await principalOf(agent),
        agent.childSession,
        "call",
      );
      const { directory } = workspace;
      const layers = layersFor({
        session,
        ancestors,
        agent: name,
        workspace: workspaceRoot(workspace.name),
        directory,
      });
      return policy.fileRules(layers);
    },
    /** Accepts a use and waits for the decision, until the signal is aborted. */
    async begin(
      agent: StartedAgent,
      { kind, tool, callId, input, cwd }: OwnUse,
      signal: AbortSignal,
    ): Promise<Exclude<BeginOutcome, { case: "waiting" }>> {
      checkServing(engine);
      const principal = await principalOf(agent);
      engine.lines.checkBudget(principal.id);
      const opened = await sessions.open(principal, agent.childSession, "call");
      const hosted = { opened, place: { directory: cwd, isDiskShared: true } };
      const request = create(BeginCallRequestSchema, {
        ...{ kind, foreignSession: agent.childSession, foreignTool: tool, foreignCallId: callId, input, cwd },
        waitMs: roundMs,
      });
      for (;;) {
        const outcome = await beginHosted(engine, principal, hosted, request, signal);
        if (outcome.case !== "waiting") return outcome;
      }
    },
    /** Records the result of a use that began; `ranInput` is what the agent ran in place of the approved input. */
    async finish(
      agent: StartedAgent,
      assignment: string,
      {
        result,
        exit,
        ranInput,
      }: {
        result: { case: "output" | "error"; value: string };
        exit?: number | undefined;
        ranInput?: JsonObject | undefined;
      },
    ): Promise<void> {
      const inputDigest = ranInput === undefined ? "" : hash("sha256", canonicalJson(ranInput), "hex");
      const report = { assignment, result, inputDigest, ...(exit !== undefined && { exit }) };
      await finishDelegated(engine, await principalOf(agent), create(FinishCallRequestSchema, report));
    },
    /** Ends a use that waits for an answer. */
    async cancel({ childSession }: StartedAgent, callId: string, reason: string): Promise<void> {
      const record = await store.getCall(childSession, callId);
      if (record) await cancelCall(engine, record.ref, reason);
    },
  };
}

/** Time of one wait for the decision. */
const roundMs = 600_000;
