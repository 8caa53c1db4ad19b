import type { DatabaseSync } from "node:sqlite";
import type { Fence } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";

/** What guards look at: a call that has not ended. It is never changed, only replaced. */
export interface OpenCallRow {
  readonly ordinal: number;
  readonly ref: CallRef;
  readonly version: number;
  readonly epoch: number;
  readonly started: boolean;
  /** Whether it ever asked: one that did not has nothing to withdraw. */
  readonly asked: boolean;
  /** The replica that has the lease, or had it last; empty after a restart and after it was handed back. */
  readonly owner: string;
  readonly leaseUntil: number;
  /** When its last ask was settled. */
  readonly settled: number;
}

/** The open calls of a store. */
export type OpenCallTable = ReturnType<typeof createOpenCallTable>;

/**
 * The open calls, in memory. Versions, epochs and start marks are in their rows too; leases are here only: this process is
 * the only one, so they end with it, and every call that is found open at the start is held by nobody.
 */
export function createOpenCallTable(db: DatabaseSync, now: number) {
  const sessions = new Map<string, Map<string, OpenCallRow>>();
  for (const row of found(db)) {
    const { root, sessionId, callId, started, asked, ...columns } = row;
    const ref = { root, sessionId, callId };
    put({ ...columns, ref, started: started === 1, asked: asked === 1, owner: "", leaseUntil: now, settled: 0 });
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

    /** The call, if the fence still holds. */
    fenced({ ref, owner, epoch }: Fence): OpenCallRow | undefined {
      const call = get(ref);
      return call?.owner === owner && call.epoch === epoch ? call : undefined;
    },

    inSession: (sessionId: string): OpenCallRow[] => [...(sessions.get(sessionId)?.values() ?? [])],
    count: (sessionId: string) => sessions.get(sessionId)?.size ?? 0,

    set(step: Step, call: OpenCallRow): void {
      restoreOnRollback(step, call.ref);
      put(call);
    },

    remove(step: Step, ref: CallRef): void {
      restoreOnRollback(step, ref);
      drop(ref);
    },

    /** Renews the leases of this owner, also of one that lapsed while nobody took the call. */
    renew(owner: string, leaseUntil: number): CallRef[] {
      const held = [...all()].filter((call) => call.owner === owner);
      for (const call of held) put({ ...call, leaseUntil });
      return held.map((call) => call.ref);
    },

    /** Ends the leases of this owner on calls that are not started. */
    release(owner: string, now: number): void {
      const released = [...all()].filter((call) => call.owner === owner && !call.started);
      for (const call of released) put({ ...call, owner: "", leaseUntil: now });
    },
  };
}

function found(db: DatabaseSync) {
  return statement<Pick<OpenCallRow, "ordinal" | "version" | "epoch"> & CallRef & { started: number; asked: number }>(
    db,
    `SELECT calls.ordinal, version, epoch, started,
       EXISTS (SELECT 1 FROM asks WHERE call = calls.ordinal) AS asked, call_id AS callId, id AS sessionId, root
     FROM calls JOIN sessions ON sessions.ordinal = calls.session WHERE expired = 0 AND ended IS NULL ORDER BY calls.ordinal`,
  ).all();
}
