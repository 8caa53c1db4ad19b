import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";

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
