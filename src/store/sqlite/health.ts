import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { DamagedRecord } from "../checksum.ts";
import { createDamage } from "../damage.ts";
import { codeOf, isDamageCode } from "./database.ts";

/** Health of a database. One that SQLite finds damaged serves nothing more. */
export interface DatabaseHealth {
  /** Runs a query on committed data. */
  read<T>(query: () => T): Promise<T>;
  /** Returns STORE_DAMAGED if SQLite found the database damaged. */
  stopped(): RequestError | undefined;
  /** Returns the error to report for one that a query or a step threw. */
  refusalOf(error: unknown): unknown;
  /** Returns the first damage that was found; undefined if none was. */
  damage(): RequestError | undefined;
}

/** Creates the health of a database that was opened without a finding. */
export function createDatabaseHealth(log: Logger | undefined): DatabaseHealth {
  const damage = createDamage(log, "stop the service and restore a backup with `toolgate restore`");
  let stopped: RequestError | undefined;

  function refusalOf(error: unknown): unknown {
    if (error instanceof DamagedRecord) return damage.refusal(error);
    if (!isSqliteError(error)) return error;
    if (!isDamageCode(codeOf(error))) return unavailable(error);
    stopped ??= damage.refusal(error, " and serves nothing more");
    return stopped;
  }

  return {
    stopped: () => stopped,
    refusalOf,
    damage: damage.first,
    async read(query) {
      if (stopped !== undefined) throw stopped;
      try {
        return query();
      } catch (error) {
        throw refusalOf(error);
      }
    },
  };
}

/** Refuses with STORE_UNAVAILABLE after a failure of the disk or the database. */
export function unavailable(cause: unknown): RequestError {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): nothing was changed, try again with the same ids`,
    {},
    { cause },
  );
}

// A closed database answers with the second one.
const sqliteCodes: readonly unknown[] = ["ERR_SQLITE_ERROR", "ERR_INVALID_STATE"];
const isSqliteError = (error: unknown): error is Error =>
  error instanceof Error && "code" in error && sqliteCodes.includes(error.code);
