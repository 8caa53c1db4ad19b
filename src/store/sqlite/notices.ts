import type { DatabaseSync } from "node:sqlite";
import type {
  ClaimedNotice,
  NewNotice,
  NoticeKey,
  NoticePhase,
  NoticeQueue,
  NoticeResult,
  StoredNotice,
} from "../../reach/ports.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";

/** The notices of a store. */
export type SqliteNotices = ReturnType<typeof createSqliteNotices>;

/**
 * Writes and reads notices. A notice is `opened` or `settled` while an attempt is due, `sent` between both, and `closed` or `dead` at the
 * end. The lease is released by its owner, or ends.
 */
export function createSqliteNotices(db: DatabaseSync) {
  const sql = prepare(db);
  return {
    /** Adds a notice, unless the channel or person has one of the ask already. */
    open(step: Step, { dueAt, owner, leaseMs, dead: why, ...key }: NewNotice): void {
      const lease = owner === "" ? 0 : step.now + leaseMs;
      const state = why === "" ? "opened" : "dead";
      sql.insert.run({ ...key, opened: step.now, state, dueAt, owner, lease, why });
    },

    /**
     * Makes the notices of a settled request due again. One that nobody tried to send ends instead. A notice that is being sent stays
     * leased until the result is recorded, so that the outcome never reaches the provider first.
     */
    settle(step: Step, ask: string): void {
      sql.settle.run({ ask, now: step.now });
    },

    claim(
      step: Step,
      { owner, leaseMs, channels }: { owner: string; leaseMs: number; channels: ReadonlyMap<string, number> },
    ): ClaimedNotice[] {
      return [...channels].flatMap(([channel, limit]) => {
        const due = sql.due.all({ channel, now: step.now, limit });
        for (const { ask, recipient } of due) sql.claim.run(owner, step.now + leaseMs, ask, channel, recipient);
        return due.map(({ ask, recipient, phase, attempts, ref }) => ({
          ...{ ask, channel, recipient, phase, attempts, ref },
        }));
      });
    },

    /** Returns whether a claim would find a notice. */
    isDue: ({ channels }: { channels: ReadonlyMap<string, number> }, now: number): boolean =>
      [...channels.keys()].some((channel) => sql.due.all({ channel, now, limit: 1 }).length > 0),

    note(
      { ask, channel, recipient, phase }: Pick<ClaimedNotice, keyof NoticeKey | "phase">,
      owner: string,
      result: NoticeResult,
    ): void {
      const key = { ask, channel, recipient, owner };
      const current = sql.state.get(key);
      if (current === undefined) return;
      const ref = result.result === "accepted" ? result.ref : current.ref;
      // The request was settled while its opening was being sent.
      if (phase === "opened" && current.state === "settled") sql.release.run({ ...key, ref });
      else if (current.state !== phase) return;
      else if (result.result === "retry") sql.retry.run({ ...key, at: result.at, why: result.why });
      else {
        const state = result.result === "dead" ? "dead" : phase === "opened" ? "sent" : "closed";
        sql.end.run({ ...key, state, ref, why: result.result === "dead" ? result.why : "" });
      }
    },

    /** Moves the times of notices that are due later. */
    postpone(ms: number): void {
      sql.postpone.run(ms, ms);
    },

    count: (): ReadonlyMap<string, NoticeQueue> =>
      new Map(sql.count.all().map(({ channel, ...queue }) => [channel, queue])),

    list: (): StoredNotice[] => sql.list.all(maxListed).map((row) => ({ ...row })),
  };
}

/** Number of notices that are listed. */
export const maxListed = 1_000;

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  const mine = "ask = :ask AND channel = :channel AND recipient = :recipient AND owner = :owner";
  return {
    insert: statement(
      `INSERT INTO notices (ask, channel, recipient, opened, state, next_at, owner, lease, why)
       VALUES (:ask, :channel, :recipient, :opened, :state, :dueAt, :owner, :lease, :why) ON CONFLICT DO NOTHING`,
    ),
    settle: statement(
      `UPDATE notices SET next_at = :now, attempts = 0,
         state = CASE WHEN state = 'opened' AND attempts = 0 AND owner = '' THEN 'closed' ELSE 'settled' END
       WHERE ask = :ask AND state IN ('opened', 'sent')`,
    ),
    due: statement<{ ask: string; recipient: string; phase: NoticePhase; attempts: number; ref: string }>(
      `SELECT ask, recipient, state AS phase, attempts, ref FROM notices
       WHERE state IN ('opened', 'settled') AND channel = :channel AND next_at <= :now AND lease <= :now ORDER BY next_at LIMIT :limit`,
    ),
    claim: statement("UPDATE notices SET owner = ?, lease = ? WHERE ask = ? AND channel = ? AND recipient = ?"),
    state: statement<{ state: string; ref: string }>(`SELECT state, ref FROM notices WHERE ${mine}`),
    release: statement(`UPDATE notices SET owner = '', lease = 0, ref = :ref WHERE ${mine}`),
    retry: statement(
      `UPDATE notices SET owner = '', lease = 0, attempts = attempts + 1, next_at = :at, why = :why WHERE ${mine}`,
    ),
    end: statement(`UPDATE notices SET owner = '', lease = 0, state = :state, ref = :ref, why = :why WHERE ${mine}`),
    postpone: statement(
      "UPDATE notices SET next_at = next_at + ?, lease = CASE lease WHEN 0 THEN 0 ELSE lease + ? END WHERE state IN ('opened', 'settled')",
    ),
    count: statement<NoticeQueue & { channel: string }>(
      `SELECT channel, count(*) AS waiting, min(max(next_at, lease)) AS oldestDue FROM notices
       WHERE state IN ('opened', 'settled') GROUP BY channel`,
    ),
    list: statement<StoredNotice>(
      `SELECT ask, channel, recipient, state, attempts, max(next_at, lease) AS dueAt, why, opened
       FROM notices ORDER BY opened DESC LIMIT ?`,
    ),
  };
}
