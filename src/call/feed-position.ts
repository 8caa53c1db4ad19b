/** Time in which events of other sessions may overtake an event on its way to a reader, in ms. */
const overtakenMs = 30_000;
/** Maximum number of sessions that the text of a position names. */
const maxNamed = 32;

/**
 * Position of a reader in the logs of many sessions. `read` has the last event that was read of each session with news in the 30 s
 * before the newest one; of all other sessions every event up to `floor` was read. So its size does not grow with the number of
 * sessions, and it can leave the process: a reader goes on from its text at another replica, or after a restart.
 */
export interface FeedPosition {
  /** Time of the store, in ms since the epoch. */
  floor: number;
  /** Session → last event that was read; the session with the newest event is the last one. */
  readonly read: Map<string, { readonly seq: number; readonly time: number }>;
}

/** Creates the position after every event up to a time of the store. */
export function positionAt(floor: number): FeedPosition {
  return { floor: Math.floor(floor), read: new Map() };
}

/** Moves a position on to an event that was read. */
export function advancePosition(position: FeedPosition, sessionId: string, seq: number, time: number): void {
  const { read } = position;
  read.delete(sessionId);
  read.set(sessionId, { seq, time });
  const floor = Math.floor(time) - overtakenMs;
  if (floor <= position.floor) return;
  position.floor = floor;
  for (const [id, last] of read) if (last.time <= floor) read.delete(id);
}

/** Writes a position. If more sessions had news than it may name, a reader that goes on from it reads some events twice. */
export function positionText({ floor, read }: FeedPosition, storeId: string): string {
  const named = [...read].slice(-maxNamed).map(([id, { seq }]) => `${id}.${seq}`);
  return [storeId, floor, ...named].join("~");
}

/** Reads the text of a position; undefined if it is not one, or one in another store. */
export function parsePosition(text: string, storeId: string): FeedPosition | undefined {
  const [store, floor = "", ...sessions] = text.split("~");
  if (store !== storeId || !/^\d{1,15}$/.test(floor) || sessions.length > maxNamed) return undefined;
  const position = positionAt(Number(floor));
  for (const named of sessions) {
    const [, id, seq] = /^(ses[A-Za-z0-9_-]{1,61})\.(\d{1,15})$/.exec(named) ?? [];
    if (id === undefined) return undefined;
    // Its time is not in the text; it is at most that of the newest event.
    position.read.set(id, { seq: Number(seq), time: position.floor + overtakenMs });
  }
  return position;
}
