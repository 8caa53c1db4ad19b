import type { DatabaseSync } from "node:sqlite";
import type { Fence, QueuedCall, RemoteMark } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";

/** Guard state of a call that has not ended. Immutable: a change replaces the row. */
export interface OpenCallRow {
  readonly ordinal: number;
  readonly ref: CallRef;
  readonly version: number;
  readonly epoch: number;
  readonly started: boolean;
  /** True once it has opened an ask; otherwise there is nothing to withdraw. */
  readonly asked: boolean;
  /** The replica that has or last had the lease; empty after a restart or a release. */
  readonly owner: string;
  /** End of the lease; of a call that waits without an owner, the time when recovery checks it. */
  readonly leaseUntil: number;
  /** For a delegated call the time in which an approval must be collected; otherwise 0. */
  readonly collectMs: number;
  /** Request digest of a delegated call; otherwise empty. */
  readonly request: string;
  /** Time of the last settlement of one of its asks. */
  readonly settled: number;
  /** Id of the call that made it and waits for it; empty without one. */
  readonly parent: string;
  /** The worker process that runs the body of a started call. */
  readonly remote?: RemoteMark | undefined;
  /** The wait for a worker. */
  readonly queued?: QueuedCall | undefined;
}

/** The open calls of a store. */
export type OpenCallTable = ReturnType<typeof createOpenCallTable>;

/**
 * Loads the open calls into memory. Versions, epochs and start marks are in their rows too. Leases are in memory only: no
 * other process uses the store, so they end with this one, and every call found open at the start is an orphan, unless it
 * waits for an ask.
 */
export function createOpenCallTable(db: DatabaseSync, now: number) {
  const sessions = new Map<string, Map<string, OpenCallRow>>();
  for (const row of loadOpenCalls(db)) {
    const { root, sessionId, callId, started, asked, waits, remote, queuedUntil, definitionId, ...columns } = row;
    const ref = { root, sessionId, callId };
    const waiting = {
      remote: remote === null ? undefined : JSON.parse(remote),
      queued: queuedUntil === null ? undefined : { definitionId, until: queuedUntil },
    };
    const leaseUntil = waits === 1 && started === 0 ? Number.POSITIVE_INFINITY : now;
    const lease = { owner: "", leaseUntil, settled: 0 };
    put({ ...columns, ref, started: started === 1, asked: asked === 1, ...lease, ...waiting });
  }

  function put(call: OpenCallRow): void {
    const { sessionId, callId } = call.ref;
    const calls = sessions.get(sessionId) ?? new Map<string, OpenCallRow>();
    sessions.set(sessionId, calls.set(callId, call));
  }

  function drop({ sessionId, callId }: CallRef): void {
    const calls = sessions.get(sessionId);
    calls?.delete(callId);
    if (calls?.size === 0) sessions.delete(sessionId);
  }

  function get(ref: Omit<CallRef, "root">): OpenCallRow | undefined {
    return sessions.get(ref.sessionId)?.get(ref.callId);
  }

  function restoreOnRollback(step: Step, ref: CallRef): void {
    const before = get(ref);
    step.onRollback(() => (before === undefined ? drop(ref) : put(before)));
  }

  function* all(): Iterable<OpenCallRow> {
    for (const calls of sessions.values()) yield* calls.values();
  }

  return {
    get,
    all,

    /** Returns the call if the fence still holds. */
    fenced({ ref, owner, epoch }: Fence): OpenCallRow | undefined {
      const call = get(ref);
      return call?.owner === owner && call.epoch === epoch ? call : undefined;
    },

    /** Returns the open calls that a call made and waits for, and those that they made. */
    descendants({ sessionId, callId }: CallRef): OpenCallRow[] {
      const made = [...(sessions.get(sessionId)?.values() ?? [])].filter(({ parent }) => parent !== "");
      const below = (id: string): OpenCallRow[] =>
        made.filter(({ parent }) => parent === id).flatMap((call) => [call, ...below(call.ref.callId)]);
      return below(callId);
    },

    inSession: (sessionId: string): OpenCallRow[] => [...(sessions.get(sessionId)?.values() ?? [])],
    /** Reports whether a session has at least `max` open calls that are delegated, or as many others. */
    hasAtLeast(sessionId: string, max: number, isDelegated: boolean): boolean {
      const calls = sessions.get(sessionId);
      if ((calls?.size ?? 0) < max) return false;
      return [...(calls?.values() ?? [])].filter(({ collectMs }) => collectMs > 0 === isDelegated).length >= max;
    },

    set(step: Step, call: OpenCallRow): void {
      restoreOnRollback(step, call.ref);
      put(call);
    },

    remove(step: Step, ref: CallRef): void {
      restoreOnRollback(step, ref);
      drop(ref);
    },

    /** Renews the leases of this owner, including lapsed ones that were not claimed. */
    renew(owner: string, leaseUntil: number): CallRef[] {
      const held = [...all()].filter((call) => call.owner === owner);
      for (const call of held) put({ ...call, leaseUntil });
      return held.map((call) => call.ref);
    },

    /** Moves all leases and times of settlements, after the clock jumped. */
    postpone(ms: number): void {
      for (const call of [...all()]) {
        const settled = call.settled === 0 ? 0 : call.settled + ms;
        const queued = call.queued && { ...call.queued, until: call.queued.until + ms };
        put({ ...call, leaseUntil: call.leaseUntil + ms, settled, queued });
      }
    },

    /** Ends the leases of this owner on calls that are not started. */
    release(owner: string, now: number): void {
      const released = [...all()].filter((call) => call.owner === owner && !call.started);
      for (const call of released) put({ ...call, owner: "", leaseUntil: now });
    },
  };
}

function loadOpenCalls(db: DatabaseSync) {
  return statement<
    Pick<OpenCallRow, "ordinal" | "version" | "epoch" | "collectMs" | "request" | "parent"> &
      CallRef & { started: number; asked: number; waits: number } & {
        remote: string | null;
        queuedUntil: number | null;
        definitionId: string;
      }
  >(
    db,
    `SELECT calls.ordinal, version, epoch, started, coalesce(json_extract(spec, '$.delegated.collectMs'), 0) AS collectMs,
       iif(json_extract(spec, '$.delegated') IS NULL, '', json_extract(spec, '$.requestDigest')) AS request,
       coalesce(json_extract(spec, '$.parent'), '') AS parent,
       remote, queued_until AS queuedUntil, json_extract(spec, '$.definitionId') AS definitionId,
       EXISTS (SELECT 1 FROM asks WHERE call = calls.ordinal) AS asked,
       EXISTS (SELECT 1 FROM asks WHERE call = calls.ordinal AND settled IS NULL) AS waits, call_id AS callId, id AS sessionId, root
     FROM calls JOIN sessions ON sessions.ordinal = calls.session WHERE expired = 0 AND ended IS NULL ORDER BY calls.ordinal`,
  ).all();
}
