export const day = 86_400_000;

/** How long what is past is kept: a session's log after its last event, a call's part after its end, what is left of both. */
export const logKept = day;
export const partsKept = 7 * day;
export const recordsKept = 30 * day;
