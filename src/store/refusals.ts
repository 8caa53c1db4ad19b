import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";

/** Refuses new calls and children in a closed session. */
export function sessionClosed(sessionId: string): RequestError {
  return new RequestError(
    ErrorReason.SESSION_CLOSED,
    `session ${sessionId} is closed and takes no new calls or children; create another one`,
    { session_id: sessionId },
  );
}

/** Refuses new work while the disk of the store is almost full, and what could not be written for that `cause`. */
export function storeFull(cause?: unknown): RequestError {
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    "the store is not available (its disk is almost full): nothing was changed; free space in the data directory, then try again with the same ids",
    {},
    { cause },
  );
}

/** Refuses a backup of records in Redis, which makes its own. */
export function refuseBackup(): never {
  throw new RequestError(
    ErrorReason.BACKUP_UNSUPPORTED,
    "the records are in Redis, so this service makes no backup: run BGSAVE on each master, then copy its dump.rdb and its appendonlydir; copy toolgate.toml and the data directory of each replica as well",
  );
}

/** Refuses another open call. */
export function tooManyCalls(sessionId: string, limit: number, isDelegated: boolean): RequestError {
  return new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `session ${sessionId} has ${limit} open ${isDelegated ? "delegated " : ""}calls, which is the limit: wait until one ends`,
    { limit: isDelegated ? "delegated_calls" : "running_calls" },
  );
}

/** Refuses a call of a parent that has ended: it would start although nothing waits for it. */
export function parentEnded(sessionId: string, callId: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_CALL,
    `call ${callId} of session ${sessionId} has ended, so it makes no more calls`,
    { session_id: sessionId, call_id: callId },
  );
}

/** Refuses more open asks. */
export function tooManyAsks(root: string, limit: number): RequestError {
  return new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `the session tree ${root} may have ${limit} open asks: answer or withdraw some first`,
    { limit: "open_asks" },
  );
}

/** Refuses an event that exceeds the message size of a stream. */
export function eventTooLarge(sessionId: string, bytes: number, limit: number): RequestError {
  return new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `an event of session ${sessionId} would have ${bytes} bytes, over the limit of ${limit}: make the input, metadata or output smaller`,
    { limit: "event_bytes" },
  );
}

/** Damage that was found in a store. */
export type Damage = ReturnType<typeof createDamage>;

/** Creates the record of damage, which logs each one with what the operator does next. */
export function createDamage(log: Logger | undefined, advice: string) {
  let first: RequestError | undefined;
  const logged = new Set<string>();

  return {
    /** Notes damage; returns the refusal to report. */
    refusal(cause: Error, consequence = ""): RequestError {
      if (logged.size < maxLogged && !logged.has(cause.message))
        log?.error(`the store is damaged${consequence}: ${advice}`, { error: cause });
      logged.add(cause.message);
      const refusal = new RequestError(
        ErrorReason.STORE_DAMAGED,
        `the store is damaged (${cause.message}): retries do not help; the operator restores a backup`,
        {},
        { cause },
      );
      first ??= refusal;
      return refusal;
    },
    /** Returns the first damage that was found; undefined if none was. */
    first: () => first,
  };
}

/** Number of records whose damage is logged. */
const maxLogged = 100;
