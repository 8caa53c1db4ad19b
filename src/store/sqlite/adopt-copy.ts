import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { endCallRow, type SqliteTables } from "./call-statements.ts";
import type { Step } from "./commit.ts";
import { newStoreId, statement } from "./database.ts";

/** Returns the terminal part of a call that was open when the copy was made. */
export type EndOpenCall = (part: ToolPart, now: number) => ToolPart;

/** Contents of a copied store, and its new id. */
export interface AdoptedCopy {
  storeId: string;
  /** Number of open calls, which ended. */
  calls: number;
  /** Number of living grants, which are suspended. */
  grants: number;
}

/**
 * Makes a copy of a store one that can serve. What happened after it was made is unknown: it gets a new id, its open calls end,
 * their permission requests are withdrawn, and its grants are suspended.
 */
export function applyAdoptCopy(tables: SqliteTables, step: Step, endOpenCall: EndOpenCall): AdoptedCopy {
  const storeId = newStoreId();
  statement(tables.db, "UPDATE meta SET value = ? WHERE key = 'store_id'").run(storeId);
  const grants = tables.grants.suspendAll(step);
  // The youngest first, so that each ends before its parent.
  const open = [...tables.openCalls.all()].toReversed();
  for (const call of open) {
    const record = tables.records.get(call.ref.sessionId, call.ref.callId);
    if (record === undefined) throw new Error(`the open call ${call.ref.callId} has no record`);
    endCallRow(tables, step, call, endOpenCall(record.part, step.now), "The store was restored from a backup.");
  }
  return { storeId, calls: open.length, grants };
}
