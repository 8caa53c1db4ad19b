import type { DatabaseSync } from "node:sqlite";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { DamagedRecord } from "../parts.ts";
import { createDamage } from "../refusals.ts";
import { codeOf, isDamageCode } from "./database.ts";

/** Services of the running transaction that a transition may use in addition to its statements. */
export interface Step {
  /** The time of the step, in ms since the epoch. */
  readonly now: number;
  /** Registers the undo of a change to memory, run if the step is rolled back. */
  onRollback(undo: () => void): void;
  /** Registers a change to memory, run once the step is durable. */
  onCommit(publish: () => void): void;
  /** Notifies the session's subscribers, once the step is durable, of news from this sequence number on. */
  notify(sessionId: string, seq: number): void;
}

/** The functions of a port as transitions: each runs inside a step and returns what the port's function resolves to. */
export type InStep<Port> = {
  [Name in keyof Port]: Port[Name] extends (...args: infer Args) => Promise<infer Result>
    ? (step: Step, ...args: Args) => Result
    : never;
};

/** Makes the functions of a port from its transitions; each call commits one. */
export function inSteps<Port extends object>(commit: Pick<Commit, "run">, transitions: InStep<Port>): Port {
  const named = Object.entries<(step: Step, ...args: unknown[]) => unknown>(transitions);
  const functions = named.map(([name, apply]) => {
    return [name, (...args: unknown[]) => commit.run((step) => apply(step, ...args))];
  });
  return Object.fromEntries(functions);
}

/** Runs transitions in groups, with as few transactions as possible. */
export type Commit = ReturnType<typeof createCommit>;

/**
 * Transitions that are requested in one turn of the event loop share one transaction, since a transaction's cost is its
 * sync. If one throws, which is rare, all are rolled back and run again, each under its own savepoint. The transaction
 * begins and commits within one turn, so reads outside of it see committed data only.
 */
export function createCommit(options: {
  db: DatabaseSync;
  now: () => number;
  notify: (sessionId: string, seq: number) => void;
  log?: Logger | undefined;
  /** Makes space on a full disk; returns false if it cannot. */
  makeSpace?: () => boolean;
  /** Called before each transaction. */
  beforeTransaction: () => void;
  health: Pick<DatabaseHealth, "stopped" | "refusalOf">;
}) {
  const { db, now, notify, log, makeSpace = () => false, beforeTransaction, health } = options;
  const begin = db.prepare("BEGIN");
  const rollBack = db.prepare("ROLLBACK");
  const save = db.prepare("SAVEPOINT transition");
  const release = db.prepare("RELEASE transition");
  const rollBackTo = db.prepare("ROLLBACK TO transition");
  const commit = db.prepare("COMMIT");
  let queue: Queued[] = [];
  // Time of the last failed commit, until a later one succeeds.
  let failedAt: number | undefined;
  let count = 0;

  function flush(): void {
    const transitions = queue;
    queue = [];
    const stopped = health.stopped();
    if (stopped !== undefined) {
      refuse(transitions, stopped);
      return;
    }
    const batch = createBatch();
    let settle: (() => void)[];
    try {
      beforeTransaction();
      const step = batch.step(now());
      begin.run();
      settle = runTogether(transitions, step, batch) ?? runApart(transitions, step, batch);
      commit.run();
    } catch (cause) {
      if (db.isOpen && db.isTransaction) rollBack.run();
      batch.undoTo(noSteps);
      if (isFull(cause) && makeSpace()) {
        runAgain(transitions);
        return;
      }
      failedAt = now();
      log?.error("the store could not commit", { error: cause, count: transitions.length });
      refuse(transitions, health.refusalOf(cause));
      return;
    }
    const isProof = transitions.some(({ isProbe }) => !isProbe);
    if (isProof) count += 1;
    if (isProof || now() - (failedAt ?? 0) >= doubtMs) failedAt = undefined;
    for (const publish of batch.publish) publish();
    for (const done of settle) done();
    for (const [sessionId, seq] of batch.firstNews()) notify(sessionId, seq);
  }

  function refuse(transitions: readonly Queued[], refusal: unknown): void {
    for (const transition of transitions) transition.reject(refusal);
  }

  /** Puts transitions back to the head of the queue. */
  function runAgain(transitions: Queued[]): void {
    if (queue.length === 0) setImmediate(flush);
    queue = [...transitions, ...queue];
  }

  /** Returns the functions that resolve the callers; undefined, with everything rolled back, if a transition threw. */
  function runTogether(transitions: readonly Queued[], step: Step, batch: Batch): (() => void)[] | undefined {
    try {
      return transitions.map(({ apply }) => apply(step));
    } catch {
      if (db.isTransaction) rollBack.run();
      batch.undoTo(noSteps);
      begin.run();
      return undefined;
    }
  }

  function runApart(transitions: readonly Queued[], step: Step, batch: Batch): (() => void)[] {
    return transitions.map((transition) => runAlone(transition, step, batch));
  }

  function runAlone(transition: Queued, step: Step, batch: Batch): () => void {
    const before = batch.mark();
    save.run();
    try {
      const resolve = transition.apply(step);
      release.run();
      return resolve;
    } catch (error) {
      if (isFull(error) || isDamageCode(codeOf(error))) throw error;
      // If SQLite has already rolled back the whole transaction, this throws, and the whole batch is refused.
      rollBackTo.run();
      release.run();
      batch.undoTo(before);
      return () => transition.reject(health.refusalOf(error));
    }
  }

  function enqueue<T>(transition: (step: Step) => T, isProbe: boolean): Promise<T> {
    return new Promise((resolve, reject) => {
      if (queue.length === 0) setImmediate(flush);
      const apply = (step: Step) => {
        const result = transition(step);
        return () => resolve(result);
      };
      queue.push({ apply, reject, isProbe });
    });
  }

  return {
    /** Runs the transition atomically; resolves when it is durable. One that throws changes nothing and does not affect others. */
    run: <T>(transition: (step: Step) => T): Promise<T> => enqueue(transition, false),
    /** Commits a small change of a value that always differs. */
    probe: (change: (step: Step) => void): Promise<void> => enqueue(change, true),
    /** Returns true if the last commit failed. A probe that commits proves the contrary only after a while, since it needs less space. */
    hasFailed: (): boolean => failedAt !== undefined,
    /** Returns the number of commits, without those of probes. */
    count: (): number => count,
  };
}

interface Queued {
  /** Runs the transition and returns the function that resolves its caller. */
  apply(step: Step): () => void;
  reject(error: unknown): void;
  isProbe: boolean;
}

/** Time after a failed commit for which a probe does not count as proof. */
const doubtMs = 10_000;

type Batch = ReturnType<typeof createBatch>;

const noSteps = { undo: 0, publish: 0, news: 0 };

/** Collects the follow-up work of one transaction: undo for a rollback, publication and news for a commit. */
function createBatch() {
  const undo: (() => void)[] = [];
  const publish: (() => void)[] = [];
  const news: [sessionId: string, seq: number][] = [];
  return {
    publish,
    step: (now: number): Step => ({
      now,
      onRollback: (change) => void undo.push(change),
      onCommit: (change) => void publish.push(change),
      notify: (sessionId, seq) => void news.push([sessionId, seq]),
    }),
    /** The sessions with news, each with its first new sequence number. */
    firstNews: () => new Map(news.toReversed()),
    mark: () => ({ undo: undo.length, publish: publish.length, news: news.length }),
    undoTo(mark: { undo: number; publish: number; news: number }) {
      for (const change of undo.splice(mark.undo).reverse()) change();
      publish.length = mark.publish;
      news.length = mark.news;
    },
  };
}

/** Returns true if SQLite found no space: on the disk, or below a limit of the file size. */
const isFull = (error: unknown) => codeOf(error) === 13;

/** Health of a database. One that SQLite finds damaged serves nothing more. */
export type DatabaseHealth = ReturnType<typeof createDatabaseHealth>;

/** Creates the health of a database that was opened without a finding. */
export function createDatabaseHealth(log: Logger | undefined) {
  const damage = createDamage(log, "stop the service and restore a backup with `toolgate restore`");
  let stopped: RequestError | undefined;

  function refusalOf(error: unknown): unknown {
    if (error instanceof DamagedRecord) return damage.refusal(error);
    if (!isSqliteError(error)) return error;
    if (!isDamageCode(codeOf(error))) return unavailable(error);
    stopped ??= damage.refusal(error, " and serves nothing more");
    return stopped;
  }

  return {
    /** Returns STORE_DAMAGED if SQLite found the database damaged. */
    stopped: (): RequestError | undefined => stopped,
    /** Returns the error to report for one that a query or a step threw. */
    refusalOf,
    /** Returns the first damage that was found; undefined if none was. */
    damage: damage.first,
    /** Runs a query on committed data. */
    async read<T>(query: () => T): Promise<T> {
      if (stopped !== undefined) throw stopped;
      try {
        return query();
      } catch (error) {
        throw refusalOf(error);
      }
    },
  };
}

/** Refuses with STORE_UNAVAILABLE after a failure of the disk or the database. */
export function unavailable(cause: unknown): RequestError {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): nothing was changed, try again with the same ids`,
    {},
    { cause },
  );
}

// A closed database answers with the second one.
const sqliteCodes: readonly unknown[] = ["ERR_SQLITE_ERROR", "ERR_INVALID_STATE"];
const isSqliteError = (error: unknown): error is Error =>
  error instanceof Error && "code" in error && sqliteCodes.includes(error.code);
