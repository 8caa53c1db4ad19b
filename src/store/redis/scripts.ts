import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** The scripts, each named as its file and as the transition it is. */
export const scriptNames = [
  "adopt_grant",
  "agree_on_policy",
  "append_output",
  "bury_call",
  "claim_call",
  "close_session",
  "create_session",
  "drop_call",
  "drop_log",
  "drop_tree",
  "enter_listing",
  "finish_call",
  "keep_field",
  "look_at_tree",
  "note_call",
  "open_asks",
  "open_call",
  "point_to",
  "prepare_call",
  "raise_rules",
  "read_asks",
  "read_hashes",
  "read_log",
  "record_events",
  "release_calls",
  "renew_leases",
  "request_cancel",
  "retire_tree",
  "revoke_grant",
  "save_grant",
  "set_store_id",
  "settle_ask",
  "start_call",
] as const;

export type ScriptName = (typeof scriptNames)[number];

/** A script as Redis knows it. */
export interface Script {
  source: string;
  sha: string;
}

/** Reads the scripts, each behind what they share. */
export function loadScripts(): ReadonlyMap<ScriptName, Script> {
  const read = (name: string) => readFileSync(join(import.meta.dirname, "scripts", `${name}.lua`), "utf8");
  const prelude = read("prelude");
  return new Map(
    scriptNames.map((name) => {
      const source = prelude + read(name);
      return [name, { source, sha: createHash("sha1").update(source).digest("hex") }];
    }),
  );
}
