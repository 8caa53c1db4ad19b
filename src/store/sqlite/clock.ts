import type { DatabaseSync } from "node:sqlite";
import { maxJumpMs, minJumpMs } from "../retention.ts";
import { readMeta, statement, writesMeta } from "./database.ts";

/** Clock of a store: this machine's, which may jump, beside a clock that only measures. */
export type SqliteClock = ReturnType<typeof openSqliteClock>;

/**
 * Opens the clock. The time since the store was last used cannot be measured: up to `maxJumpMs` it is trusted, otherwise it counts
 * as a jump. A time that was not trusted is trusted if the next start still finds it.
 */
export function openSqliteClock({
  db,
  wall,
  uptime,
  sleep,
  onJump,
}: {
  db: DatabaseSync;
  wall: () => number;
  uptime: () => number;
  /** Time for which the machine slept so far, which `uptime` does not measure, in ms. */
  sleep: () => number;
  /** Called when a jump is found. */
  onJump: () => void;
}) {
  const write = writesMeta(db, "clock");
  const began = wall();
  const stored = readMeta<{ seen: number; untrusted: number }>(db, "clock") ?? {
    seen: lastActivity(db) ?? began,
    untrusted: 0,
  };
  const gap = began - stored.seen;
  // Time that passed while nothing measured it expires permission requests; a jump does not.
  let held = gap > maxJumpMs || gap < -minJumpMs ? gap : 0;
  let untrusted = held === 0 ? 0 : stored.untrusted;
  // Difference of the two clocks, without the jump.
  let base = began - uptime() - held;
  let trustedJumpMs = 0;
  let slept = sleep();

  function now(): number {
    const time = wall();
    let drift = time - uptime() - base;
    if (Math.abs(drift - held) > minJumpMs) drift -= sleepSince();
    if (Math.abs(drift - held) > minJumpMs) {
      held = drift;
      onJump();
    } else if (held === 0) base += drift;
    return time - held;
  }

  /** Counts time in which the machine slept as measured. */
  function sleepSince(): number {
    const before = slept;
    slept = sleep();
    base += slept - before;
    return slept - before;
  }

  const save = () => write({ seen: now(), untrusted });

  return {
    /** Time of the store, in ms since the epoch. A jump counts only once it is adopted. */
    now,
    /** Time for retention: it advances by measured uptime and by a bounded jump; what is beyond is not trusted. */
    retentionNow: (): number => now() - untrusted,
    /** Returns the jump that is not adopted yet, in ms; 0 if there is none. */
    jump(): number {
      now();
      return held;
    },
    /**
     * Adopts the jump and stores that; run inside the transaction that moves the stored deadlines by it. Returns the function that
     * forgets it again if the transaction fails.
     */
    adopt(): () => void {
      const before = { held, base, untrusted, trustedJumpMs };
      if (held < 0) untrusted = Math.max(0, untrusted + held);
      else if (trustedJumpMs + held <= maxJumpMs) trustedJumpMs += held;
      else untrusted += held;
      base += held;
      held = 0;
      save();
      return () => ({ held, base, untrusted, trustedJumpMs } = before);
    },
    /** Returns the part of the time that retention does not trust, in ms. */
    untrustedMs: (): number => untrusted,
    /** Stores the state; run inside a transaction. */
    save,
  };
}

/** Time of the last event; stores of earlier versions have no clock. */
const lastActivity = (db: DatabaseSync) =>
  statement<{ time: number | null }>(db, "SELECT max(active) AS time FROM sessions").get()?.time ?? undefined;
