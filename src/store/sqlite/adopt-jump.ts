import type { Logger } from "../../core/logger.ts";
import { jumpInWords } from "../clock-jump.ts";
import type { SqliteClock } from "./clock.ts";
import type { SqliteTables } from "./tables.ts";

/**
 * Adopts a jump of the clock in a separate transaction. Open permission requests keep their remaining time, and so do open
 * calls: all their deadlines move with the clock.
 */
export function adoptJump(
  { db, asks, callSql, openCalls, records }: Pick<SqliteTables, "db" | "asks" | "callSql" | "openCalls" | "records">,
  clock: SqliteClock,
  log: Logger | undefined,
): void {
  const by = clock.jump();
  if (by === 0) return;
  let forget = () => {};
  db.exec("BEGIN");
  try {
    asks.postpone(by);
    callSql.postponeQueues.run(by);
    for (const { ordinal } of openCalls.all()) records.postpone(ordinal, by);
    forget = clock.adopt();
    db.exec("COMMIT");
  } catch (error) {
    forget();
    if (db.isTransaction) db.exec("ROLLBACK");
    throw error;
  }
  openCalls.postpone(by);
  const fact = `the clock of this machine jumped by ${jumpInWords(by)}: deadlines of open calls and permission requests move with it`;
  const rest = clock.untrustedMs();
  if (rest === 0) log?.warn(fact);
  else
    log?.error(
      `${fact}. Nothing is removed because of ${jumpInWords(rest)} of it: if the time is right now, restart the service; otherwise correct the clock`,
    );
}
