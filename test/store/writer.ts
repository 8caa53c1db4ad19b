/**
 * Opens calls in a store until it is killed or refused, and prints the id of each acknowledged one. Run by sqlite.test.ts:
 * `node writer.ts DIRECTORY PREFIX`.
 */
import { writeSync } from "node:fs";
import { RequestError } from "../../src/core/request-error.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { addSession, callRef, completed, fenceOf, openCall, owner, running } from "./fixture.ts";

const [directory = "", prefix = ""] = process.argv.slice(2);
const store = await openSqliteStore({ directory });
await addSession(store);
writeSync(1, "open\n");

async function write(worker: number): Promise<void> {
  for (let index = 0; ; index++) {
    const ref = callRef(`${prefix}_${worker}_${index}`);
    const record = await openCall(store, ref);
    const fence = fenceOf(record);
    await store.calls.startCall({ fence, version: record.version, part: running(ref) });
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "x".repeat(1_000)) });
    writeSync(1, `${ref.callId}\n`);
  }
}

const refused: unknown = await Promise.any(Array.from({ length: 8 }, (_, worker) => write(worker))).catch(
  (error: AggregateError) => error.errors[0],
);
if (!(refused instanceof RequestError)) throw refused;
const { lastSeq } = await store.calls.readLog("ses_root", 0, 1);
const held = await store.calls.renewLeases(owner, 1);
const open = await store.calls.listCalls({ sessionId: "ses_root", open: true, limit: 1_000 });
writeSync(1, `refused ${refused.reason} ${lastSeq} ${held.length} ${open.length}\n`);
