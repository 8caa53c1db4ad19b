import { uptime } from "node:os";

/** A day, in ms. */
export const dayMs = 86_400_000;

/** Retention of a session's log after its last event. */
export const logRetentionMs = dayMs;
/** Retention of a call's part and asks after its end; then a tombstone replaces them. */
export const partRetentionMs = 7 * dayMs;
/** Retention of tombstones, dead grants and idle session trees. */
export const recordRetentionMs = 30 * dayMs;
/** Retention of the audit by default, in days, the longest of all: a database grows on a disk, and Redis in memory. */
export const auditDays = { sqlite: 400, redis: 90 } as const;

/** Returns the retention of the audit, and the longer one that holds while a receiver of the audit has not accepted a record. */
export function auditRetention(
  { auditDays: days, auditMaxDays }: { auditDays?: number | undefined; auditMaxDays?: number | undefined },
  byDefault: number,
): { auditMs: number; auditMaxMs: number } {
  const kept = days ?? byDefault;
  return { auditMs: kept * dayMs, auditMaxMs: Math.max(kept, auditMaxDays ?? kept + 30) * dayMs };
}

/** The largest jump of a clock that a store takes over by itself: a long weekend without the service. Results are stored for longer. */
export const maxJumpMs = 3 * dayMs;
/** The smallest difference of two clocks that is a jump. */
export const minJumpMs = 5_000;

/** Describes a jump in a log line. */
export function jumpInWords(ms: number): string {
  const size = Math.abs(ms);
  const [count, unit] =
    size >= dayMs ? [size / dayMs, "days"] : size >= 60_000 ? [size / 60_000, "minutes"] : [size / 1_000, "seconds"];
  return `${ms < 0 ? "-" : ""}${count.toFixed(1)} ${unit}`;
}

/** Returns the time for which the machine slept so far, in ms: its uptime counts that, and the other clock does not. */
export const sleepOfMachine = (): number => uptime() * 1_000 - performance.now();

/** Kinds of records that a sweep removes. */
export const removedKinds = [
  "results",
  "tombstones",
  "events",
  "logs",
  "grants",
  "decisions",
  "trees",
  "outputs",
] as const;

/** Numbers of records that a sweep removed. */
export type RemovedCounts = Partial<Record<(typeof removedKinds)[number], number>>;

/** Adds to a count. */
export function countRemoved(counts: RemovedCounts, kind: keyof RemovedCounts, count: number): void {
  counts[kind] = (counts[kind] ?? 0) + count;
}

/** Lists the counts that are not zero, for the log; empty if nothing was removed. */
export function removedInWords(counts: RemovedCounts): string {
  const words = removedKinds.filter((kind) => (counts[kind] ?? 0) > 0).map((kind) => `${counts[kind]} ${kind}`);
  return words.join(", ");
}
