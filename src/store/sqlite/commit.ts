import type { DatabaseSync } from "node:sqlite";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";

/** What a transition may use beside its statements. */
export interface Step {
  /** The time of the step, in ms since the epoch. */
  readonly now: number;
  /** Takes back a change to memory if what the step wrote is rolled back. */
  onRollback(undo: () => void): void;
  /** Runs once what the step wrote is durable. */
  onCommit(publish: () => void): void;
  /** Tells whoever watches the session that it has news from this number on, once what the step wrote is durable. */
  ring(sessionId: string, seq: number): void;
}

/** Runs transitions, grouped into as few transactions as possible. */
export interface Commit {
  /** Runs the transition atomically; resolves when it is durable. One that throws leaves no trace and harms no other. */
  run<T>(transition: (step: Step) => T): Promise<T>;
}

/**
 * Transitions that are asked for in one turn of the event loop share one transaction, since a transaction's cost is its
 * sync. If one throws, which is seldom, all are rolled back and run again, each under a savepoint of its own. The
 * transaction is begun and committed without giving up the thread, so what is read outside of it is always committed.
 */
export function createCommit(options: {
  db: DatabaseSync;
  now: () => number;
  ring: (sessionId: string, seq: number) => void;
  log?: Logger | undefined;
}): Commit {
  const { db, now, ring, log } = options;
  const begin = db.prepare("BEGIN");
  const rollBack = db.prepare("ROLLBACK");
  const save = db.prepare("SAVEPOINT transition");
  const release = db.prepare("RELEASE transition");
  const rollBackTo = db.prepare("ROLLBACK TO transition");
  const commit = db.prepare("COMMIT");
  let queue: Queued[] = [];

  function flush(): void {
    const transitions = queue;
    queue = [];
    const batch = createBatch();
    let settle: (() => void)[];
    try {
      const step = batch.step(now());
      begin.run();
      settle = runTogether(transitions, step, batch) ?? runApart(transitions, step, batch);
      commit.run();
    } catch (cause) {
      if (db.isOpen && db.isTransaction) rollBack.run();
      batch.undoTo(noSteps);
      log?.error("the store could not commit", { error: cause, count: transitions.length });
      for (const transition of transitions) transition.reject(unavailable(cause));
      return;
    }
    for (const publish of batch.publish) publish();
    for (const done of settle) done();
    for (const [sessionId, seq] of batch.firstNews()) ring(sessionId, seq);
  }

  /** What tells the callers; undefined, and nothing is left of any, if one threw. */
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
      // Where SQLite has given up the whole transaction this throws, and all of the batch is refused.
      rollBackTo.run();
      release.run();
      batch.undoTo(before);
      return () => transition.reject(isSqliteError(error) ? unavailable(error) : error);
    }
  }

  return {
    run: (transition) =>
      new Promise((resolve, reject) => {
        if (queue.length === 0) setImmediate(flush);
        const apply = (step: Step) => {
          const result = transition(step);
          return () => resolve(result);
        };
        queue.push({ apply, reject });
      }),
  };
}

/** Runs a query on what is committed. */
export async function readNow<T>(query: () => T): Promise<T> {
  try {
    return query();
  } catch (error) {
    throw isSqliteError(error) ? unavailable(error) : error;
  }
}

/** The refusal of whatever the disk or the database failed to do. */
export function unavailable(cause: unknown): RequestError {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): nothing was changed, try again with the same ids`,
    {},
    { cause },
  );
}

interface Queued {
  /** Runs the transition and returns what tells its caller. */
  apply(step: Step): () => void;
  reject(error: unknown): void;
}

type Batch = ReturnType<typeof createBatch>;

const noSteps = { undo: 0, publish: 0, rung: 0 };

/** What the steps of one transaction leave to be done when it is known how it ended. */
function createBatch() {
  const undo: (() => void)[] = [];
  const publish: (() => void)[] = [];
  const rung: [sessionId: string, seq: number][] = [];
  return {
    publish,
    step: (now: number): Step => ({
      now,
      onRollback: (change) => void undo.push(change),
      onCommit: (change) => void publish.push(change),
      ring: (sessionId, seq) => void rung.push([sessionId, seq]),
    }),
    /** The sessions with news, each with its first new number. */
    firstNews: () => new Map(rung.toReversed()),
    mark: () => ({ undo: undo.length, publish: publish.length, rung: rung.length }),
    undoTo(mark: { undo: number; publish: number; rung: number }) {
      for (const change of undo.splice(mark.undo).reverse()) change();
      publish.length = mark.publish;
      rung.length = mark.rung;
    },
  };
}

// The second is what a closed database answers with.
const sqliteCodes: readonly unknown[] = ["ERR_SQLITE_ERROR", "ERR_INVALID_STATE"];
const isSqliteError = (error: unknown) => error instanceof Error && "code" in error && sqliteCodes.includes(error.code);
