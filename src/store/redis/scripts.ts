import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { assets } from "../../core/assets.ts";

/** Traits of a script that decide how it is sent. */
interface ScriptTraits {
  /**
   * Ends open work, or holds it until it ends: a Redis that has reached maxmemory runs it too, as it is bounded by what is open. So
   * does the step that counts copies, which writes one number, and those of the export of the audit, for which retention waits. All
   * other steps that write are refused there before their first write.
   */
  runsWhenFull?: true;
  /** A short outage must not end running calls. The reply of an operation is remembered for longer than such a step is retried. */
  isOfRunningCall?: true;
  /** No client sees its result before that of another, confirmed step; or a list, as copies need not have what it names. */
  isUnconfirmed?: true;
}

/** The scripts that write, each named after its transition and, but for `refuse_ask`, its file. */
const steps = {
  adopt_call: {},
  adopt_clock: {},
  adopt_grant: {},
  agree_on_clock: {},
  agree_on_format: {},
  agree_on_history: {},
  agree_on_policy: { isUnconfirmed: true },
  announce_replica: {},
  announce_workers: { isUnconfirmed: true },
  append_output: { isOfRunningCall: true },
  bury_call: { runsWhenFull: true, isUnconfirmed: true },
  change_record: {},
  check_counter: { isUnconfirmed: true },
  claim_call: { isUnconfirmed: true },
  claim_export: { runsWhenFull: true },
  claim_notices: {},
  close_session: { runsWhenFull: true },
  confirm_grant: {},
  create_session: {},
  drop_audit: { isUnconfirmed: true },
  drop_call: { isUnconfirmed: true },
  drop_log: { isUnconfirmed: true },
  drop_tree: { isUnconfirmed: true },
  enter_listing: {},
  escalate_ask: { runsWhenFull: true },
  expect_copies: { runsWhenFull: true },
  finish_call: { runsWhenFull: true, isOfRunningCall: true },
  forget_worker: { isUnconfirmed: true },
  keep_field: {},
  look_at_tree: { isUnconfirmed: true },
  note_call: {},
  note_export: { runsWhenFull: true },
  note_notice: { runsWhenFull: true },
  note_report: {},
  open_asks: { isOfRunningCall: true },
  open_call: {},
  park_call: { runsWhenFull: true },
  point_to: {},
  prepare_call: {},
  raise_counter: {},
  raise_rules: {},
  rebind_call: {},
  record_decisions: {},
  record_events: { isOfRunningCall: true },
  refuse_ask: { runsWhenFull: true },
  release_calls: { runsWhenFull: true, isUnconfirmed: true },
  renew_leases: { runsWhenFull: true, isOfRunningCall: true, isUnconfirmed: true },
  request_cancel: { runsWhenFull: true },
  restart_call: {},
  resume_call: {},
  retire_tree: { runsWhenFull: true, isUnconfirmed: true },
  revoke_grant: {},
  save_grant: {},
  set_store_id: { isUnconfirmed: true },
  settle_ask: {},
  shift_tree: {},
  start_call: { isOfRunningCall: true },
  take_grant: {},
} satisfies Record<string, ScriptTraits>;

/** The scripts that only read; they take plain KEYS and ARGV, without the prelude. */
const reads = {
  read_asks: {},
  read_asks_of_call: {},
  read_call_of_ask: {},
  read_assigned: {},
  read_delegated: {},
  read_hashes: {},
  read_leases: { isUnconfirmed: true },
  read_live: { isUnconfirmed: true },
  read_log: {},
  read_open: { isUnconfirmed: true },
  read_requests: { isUnconfirmed: true },
} satisfies Record<string, ScriptTraits>;

export type StepName = keyof typeof steps;
export type ReadName = keyof typeof reads;

export const stepNames = Object.keys(steps) as StepName[];
export const readNames = Object.keys(reads) as ReadName[];
/** Traits of every script, by its name. */
export const scriptTraits: Readonly<Record<StepName | ReadName, ScriptTraits>> = { ...steps, ...reads };

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
      const flags = scriptTraits[name].runsWhenFull ? "#!lua flags=allow-oom\n" : "";
      return [name, script(flags + prelude + read(fileOf(name)))] as const;
    }),
    ...readNames.map((name) => [name, script(read(name))] as const),
  ]);
}
