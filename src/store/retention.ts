/** A day, in ms. */
export const dayMs = 86_400_000;

/** Retention of a session's log after its last event. */
export const logRetentionMs = dayMs;
/** Retention of a call's part and asks after its end; then a tombstone replaces them. */
export const partRetentionMs = 7 * dayMs;
/** Retention of tombstones, dead grants and idle session trees. */
export const recordRetentionMs = 30 * dayMs;
/** Retention of the audit, the longest of all. */
export const auditRetentionMs = 90 * dayMs;
