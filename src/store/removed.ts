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
