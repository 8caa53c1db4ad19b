import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { assets } from "../../core/assets.ts";

/** The scripts that write, each named after its transition and, but for `refuse_ask`, its file. */
export const stepNames = [
  "adopt_call",
  "adopt_clock",
  "adopt_grant",
  "agree_on_clock",
  "agree_on_format",
  "agree_on_history",
  "agree_on_policy",
  "announce_replica",
  "announce_workers",
  "append_output",
  "bury_call",
  "change_record",
  "check_counter",
  "claim_call",
  "claim_export",
  "claim_notices",
  "close_session",
  "confirm_grant",
  "create_session",
  "drop_audit",
  "drop_call",
  "drop_log",
  "drop_tree",
  "enter_listing",
  "escalate_ask",
  "expect_copies",
  "finish_call",
  "forget_worker",
  "keep_field",
  "look_at_tree",
  "note_call",
  "note_export",
  "note_notice",
  "note_report",
  "open_asks",
  "open_call",
  "park_call",
  "point_to",
  "prepare_call",
  "raise_counter",
  "raise_rules",
  "rebind_call",
  "record_decisions",
  "record_events",
  "refuse_ask",
  "release_calls",
  "renew_leases",
  "request_cancel",
  "restart_call",
  "resume_call",
  "retire_tree",
  "revoke_grant",
  "save_grant",
  "set_store_id",
  "settle_ask",
  "shift_tree",
  "start_call",
  "take_grant",
] as const;

/** The scripts that only read; they take plain KEYS and ARGV, without the prelude. */
export const readNames = [
  "read_asks",
  "read_asks_of_call",
  "read_call_of_ask",
  "read_assigned",
  "read_delegated",
  "read_hashes",
  "read_leases",
  "read_live",
  "read_log",
  "read_open",
  "read_requests",
] as const;

export type StepName = (typeof stepNames)[number];
export type ReadName = (typeof readNames)[number];

/**
 * Steps that end open work, or hold it until it ends. A Redis that has reached maxmemory runs them too: they are bounded by what is
 * open. So do the step that counts copies, which writes one number, and those of the export of the audit, for which retention waits. All other steps that write are refused there before their first
 * write.
 */
const stepsOnFullStore: ReadonlySet<StepName> = new Set([
  "bury_call",
  "claim_export",
  "close_session",
  "escalate_ask",
  "expect_copies",
  "finish_call",
  "note_export",
  "note_notice",
  "park_call",
  "refuse_ask",
  "release_calls",
  "renew_leases",
  "request_cancel",
  "retire_tree",
]);

/** A settlement that refuses is the same script as one that approves, which adds grants and inputs. */
const fileOf = (name: StepName) => (name === "refuse_ask" ? "settle_ask" : name);

/** A script and its digest, by which Redis finds it. */
export interface Script {
  source: string;
  sha: string;
}

/** Loads the scripts; puts the prelude before those that write. */
export function loadScripts(): ReadonlyMap<StepName | ReadName, Script> {
  const read = (name: string) => readFileSync(join(assets.redisScripts, `${name}.lua`), "utf8");
  const prelude = read("prelude");
  const script = (source: string) => ({ source, sha: createHash("sha1").update(source).digest("hex") });
  return new Map([
    ...stepNames.map((name) => {
      const flags = stepsOnFullStore.has(name) ? "#!lua flags=allow-oom\n" : "";
      return [name, script(flags + prelude + read(fileOf(name)))] as const;
    }),
    ...readNames.map((name) => [name, script(read(name))] as const),
  ]);
}
