import type { JsonObject } from "@bufbuild/protobuf";

/** The permission of questions to a person. Rules can only deny it: a question is always answered by a person. */
export const questionPermission = "question";
/** The `alwaysAsk` of a command that its agent would run outside of the agent's own sandbox. */
export const outsideSandbox = "runs outside the agent's sandbox";

/** Something that a call needs allowed: patterns of one permission, all of which must be allowed. */
export interface Ask {
  /** The permission, such as `bash`, `edit` or `read`. */
  permission: string;
  /** Commands, paths or addresses that the call would touch. An empty list is never allowed by a rule: it asks. */
  patterns: readonly string[];
  /** For permissions that are judged by path: the canonical absolute path of each pattern. */
  paths?: readonly string[];
  /** For commands: the canonical working directory. */
  cwd?: string;
  /** For commands: the patterns are no command lines, so that only a rule for everything allows them. */
  isText?: true;
  /** Wildcards that "always" may save in addition to the exact patterns; only those that match the ask are offered. */
  always?: readonly string[];
  /** Reason to ask each time although rules allow it; a predicate of the patterns, such as `has other names`. */
  alwaysAsk?: string;
  /** Those of the patterns that the call deletes: a risk that approvers see first. */
  deletes?: readonly string[];
  /** For a web address: the IP address that its host resolves to, once that is known. */
  leadsTo?: string;
  /** For a web address that only `judge` evaluates: the operator configured it, so its host need not be public. Rules apply. */
  isConfigured?: true;
  /** For what a command line does: true if the sandbox contains it; otherwise the reason why not. Absent: not known. Only the engine sets it. */
  contained?: true | string;
  /** A refusal of this ask by a person or the deadline ends the ask alone: the tool body that asked goes on. */
  refusable?: true;
  /** The body works while this ask of it is open, so the call keeps its slot. */
  whileWorking?: true;
  /** Shown by user interfaces. */
  metadata?: JsonObject;
  /** Approval covers later asks of the same permission made by the tool body; denials still apply. */
  wholeCall?: true;
  /** An approver's answer to this ask covers later asks of the tool body about which no rule says anything. */
  coversBody?: true;
}
