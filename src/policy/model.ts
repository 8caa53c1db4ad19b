import type { JsonObject } from "@bufbuild/protobuf";
import type { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { GitFiles } from "./protected-files.ts";
import type { Rule } from "./rules.ts";
import type { PlacedCode } from "./shell/code.ts";
import type { Readings } from "./shell/command.ts";
import type { RiskFound } from "./shell/effects.ts";
import type { PlacedPush } from "./shell/push.ts";

/** An ask with the findings of the command analysis; see `expand`. */
export interface ExpandedAsk extends Ask {
  /** The tool and the input of the call that asks, for conditions; absent: unknown. Only the engine sets it. */
  call?: { readonly tool?: string; readonly input?: JsonObject };
  /** For commands: the whole line that they are parts of, as the tool gave it. */
  line?: string;
  /** For commands: what was understood of the line. A text without a reading is read where it is needed. */
  readings?: Readings;
  /** For commands: what the sandbox enforces for its line. */
  wall?: Wall;
  /** For commands: a sandbox hides the files of the workspace that rules do not allow to read and that no ask of the call names. */
  isConfined?: true;
  /** For commands: the files that they run or read as code, to whose content an approval is bound. */
  code?: LineCode;
  /** For commands: the names of the programs that they run. */
  programs?: readonly string[];
  /** Another ask decides: a rule that matches this one can only ask or deny. */
  restricts?: true;
  /** For commands, and for what they touch: the risks of the whole line. */
  risks?: readonly RiskFound[];
  /** For commands: not all code that they run was searched for risks. */
  hasUnreadCode?: true;
  /** For commands: patterns that run what a pipe feeds them, such as `sh`, each with its whole pipeline. No grant covers them. */
  pipelines?: ReadonlyMap<string, string>;
}

/** Returns the field `call` of an ask, for asks that follow from it. */
export const factsOfCall = ({ call }: ExpandedAsk): Pick<ExpandedAsk, "call"> => (call === undefined ? {} : { call });

/** The code of a line. */
export interface LineCode {
  files: readonly PlacedCode[];
  /** True if the line may run more code of the workspace than these files. */
  runsMore: boolean;
  /** The reasons why not all files are known. */
  unknown: readonly string[];
  /** The top directories of the repositories in which git runs. */
  repositories: readonly string[];
  /** The pushes that go where the settings of their repositories say. */
  pushes: readonly PlacedPush[];
}

/** What the sandbox enforces for the command lines of an agent. */
export interface Wall {
  /** True if it hides the files of the workspace that rules do not allow to read. */
  readonly hides: boolean;
  /** The reason why it contains no line, as a predicate of the line, with the next step; absent: it is whole. */
  readonly problem?: string;
  /** Returns the directories that every command sees, and cannot change. */
  shown(): readonly string[];
  /** Directories in the place of which commands see private ones. */
  readonly temporary: readonly string[];
  /** Directories outside the workspace in which commands may write. */
  readonly writable: readonly string[];
  /** True if commands reach hosts by the proxy; false: none. */
  readonly hasNetwork: boolean;
}

/** A list of rules and its origin. */
export interface LayerRules {
  layer: PermissionLayer;
  /** Never change this array: it is compiled once, see `createCompiledRules`. Hand over the same array for each decision. */
  rules: readonly Rule[];
  /** The session, agent or file of the list, where the layer alone does not identify it. */
  source?: string;
  /** A policy file of a workspace that is trusted as it is: its rules may widen, too. */
  widens?: true;
  /** The reason why the list cannot be read; until it can, everything asks. */
  problem?: string;
}

/** The rules that apply to one call. */
export interface Layers {
  /** Count as one list, in this order: the last match wins; without a match the decision is ASK. */
  wide: readonly LayerRules[];
  /** Count separately: a list without a match has no opinion, and the strictest of all lists wins. Of INHERITED lists only denials count. */
  narrow: readonly LayerRules[];
  /** The hosts from which contained commands may install packages; absent without a preset. */
  registries?: readonly string[];
  /** The budget for all decisions by these layers; absent: each ask has a separate one. */
  steps?: MatchSteps;
  /** True if decisions need not name every rule that matches. */
  isUntraced?: true;
  /** The files that settings of git name in the workspace; absent: none. */
  gitFiles?: GitFiles | undefined;
}

/** The subject of a decision: the session (with its ancestors, root first), the agent, and the tool as grants identify it. */
export interface Subject {
  session: Session | undefined;
  ancestors: readonly Session[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  /** The canonical directory of the session. */
  directory: string;
  tool: string;
  /** The value to which grants for this tool are bound. */
  binding: string;
}

/** Budget for matching texts with rules, in characters that are compared. Counted before the work is done. */
export interface MatchSteps {
  /** Counts steps; throws `TooManySteps` instead of allowing more than the budget. */
  spend(steps: number): void;
  /** The steps so far. */
  used(): number;
}

/** The texts and rules of a decision are too large to match. */
export class TooManySteps extends Error {
  override name = "TooManySteps";
}

/** Takes 30 ms for common rules and 400 ms for hostile ones. */
export const maxMatchSteps = 16_000_000;

/** Steps that hostile rules take in a millisecond. */
export const stepsPerMs = 40_000;

/** Creates a budget. */
export function createMatchSteps(max = maxMatchSteps): MatchSteps {
  let used = 0;
  return {
    spend(steps) {
      if (used + steps > max) throw new TooManySteps(`matching takes more than ${max} steps`);
      used += steps;
    },
    used: () => used,
  };
}
