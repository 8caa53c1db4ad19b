import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionReason,
  type RuleMatch,
  RuleMatchSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Ask, questionPermission } from "../core/ask.ts";
import { type Address, isAmbiguous } from "./address.ts";
import { warningsAbout } from "./display.ts";
import { type LayerRules, type Layers, type MatchSteps, maxMatchSteps } from "./model.ts";
import { type ConnectorFiles, type GitFiles, gitFile, isGitSettings, protectedFile } from "./protected-files.ts";
import type { CompiledRules, Placed, Target } from "./rule-list.ts";
import { actions, type Rule } from "./rules.ts";
import { foldCase } from "./wildcard.ts";

/** A rule that matched, with its layer. */
export interface Match extends Placed {
  layer: PermissionLayer;
  /** The session, agent or file of the rule, where the layer alone does not identify it. */
  source: string;
}

/** The opinion of one list of rules, or of the engine, on one pattern. */
export interface Opinion {
  action: PermissionAction;
  layer: PermissionLayer;
  /** For people. */
  reason: string;
  /** For programs; absent where the matching rule is the reason. */
  code?: PermissionReason;
  /** The rule that decided, if one did. */
  match?: Match;
}

/** Returns the opinion of a rule that matched. */
export function opinionBy(match: Match): Opinion {
  return { action: match.rule.action, layer: match.layer, reason: describe(match), match };
}

/** Describes a match in words: `config rule 3 (bash "git *" allow)`. */
export function describe({ layer, source, index, rule }: Match): string {
  const action = actionNames.get(rule.action);
  const place = `${layerNames[layer]} rule ${index}${named.has(layer) ? ` of ${source}` : ""}`;
  return `${place} (${rule.permission} ${JSON.stringify(rule.pattern)} ${action})`;
}

/** Returns the strictest action: DENY before ASK before ALLOW; ASK if the list is empty. */
export function strictest(decisions: readonly { action: PermissionAction }[]): PermissionAction {
  return strictestOf(decisions)?.action ?? PermissionAction.ASK;
}

/** Returns the strictest item, the first of equals. The enum numbers of the contract rise with strictness. */
export function strictestOf<Item extends { action: PermissionAction }>(items: readonly Item[]): Item | undefined {
  return items.reduce<Item | undefined>((best, item) => (best && best.action >= item.action ? best : item), undefined);
}

const actionNames = new Map<PermissionAction, string>(Object.entries(actions).map(([name, action]) => [action, name]));

const layerNames: Record<PermissionLayer, string> = {
  [PermissionLayer.UNSPECIFIED]: "no",
  [PermissionLayer.DEFAULTS]: "default",
  [PermissionLayer.CONFIG]: "config",
  [PermissionLayer.AGENT]: "agent",
  [PermissionLayer.REQUEST]: "request",
  [PermissionLayer.SESSION]: "session",
  [PermissionLayer.INHERITED]: "inherited",
  [PermissionLayer.GRANT]: "grant",
  [PermissionLayer.ENGINE]: "engine",
  [PermissionLayer.AGENT_LIMITS]: "limits",
  [PermissionLayer.WORKSPACE]: "workspace",
  [PermissionLayer.PRESET]: "preset",
};

/** Layers that exist more than once, so that a description names the source. */
const named: ReadonlySet<PermissionLayer> = new Set([
  PermissionLayer.INHERITED,
  PermissionLayer.AGENT_LIMITS,
  PermissionLayer.WORKSPACE,
]);

/** No rule matches. */
export const noMatch: Opinion = {
  action: PermissionAction.ASK,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule matches: ask",
  code: PermissionReason.NO_RULE,
};

/** A call does not name what it touches. */
export const noPattern: Opinion = {
  ...noMatch,
  reason: "nothing says what would be touched: ask",
  code: PermissionReason.NO_PATTERN,
};

/** No rule restricts an ask that can only be restricted. */
export const notRestricted: Opinion = {
  action: PermissionAction.ALLOW,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule asks or denies it",
  code: PermissionReason.NO_RULE,
};

/** The engine has a person answer, whatever rules and grants say. */
function alwaysAsked(why: string): Opinion {
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.ENGINE,
    reason: `engine: ${why}: always asked`,
    code: PermissionReason.ALWAYS_ASKED,
  };
}

/** The text and the rules are too large to match. */
export const tooLarge = alwaysAsked(`matching the text with all rules takes more than ${maxMatchSteps} steps`);

/** The engine protects what would be touched. */
export function protectedBy(reason: string): Opinion {
  return {
    action: PermissionAction.DENY,
    layer: PermissionLayer.ENGINE,
    reason: `engine: ${reason}`,
    code: PermissionReason.PROTECTED,
  };
}

/** A policy file cannot be read. */
export function unreadableRules(problem: string): Opinion {
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.WORKSPACE,
    reason: `${problem}: everything asks`,
    code: PermissionReason.BROKEN_POLICY,
  };
}

/** The part of a decision that lists the rules that matched. */
interface Trace {
  matches: RuleMatch[];
  moreMatches: number;
}

/** A match, and the spelling that matched, where that is not the pattern itself. */
export interface TracedMatch extends Match {
  text: string;
  /** Set where the condition of the rule is not met, so that it does not count. */
  unmet?: string;
}

/** Bounds the trace: decisions are stored with it, and the authors of rules decide how many rules there are. */
const maxMatches = 50;

/** Builds the trace from the matches in order: the last ones, and always the deciding one. */
export function traceOf(matches: readonly TracedMatch[], decided: Match | undefined): Trace {
  const isDeciding = (match: Match) => match.rule === decided?.rule && match.layer === decided.layer;
  const first = Math.max(0, matches.length - maxMatches);
  const traced = matches.filter((match, place) => place >= first || isDeciding(match));
  return {
    matches: traced.map((match) =>
      create(RuleMatchSchema, {
        layer: match.layer,
        source: match.source,
        ruleIndex: match.index,
        rule: plainRule(match.rule),
        text: match.text,
        decided: match.unmet === undefined && isDeciding(match),
        ...(match.unmet !== undefined && { unmet: match.unmet }),
      }),
    ),
    moreMatches: matches.length - traced.length,
  };
}

/** Returns the fields of a rule, as a message has them. */
export function plainRule({ permission, pattern, action, when = "" }: Rule) {
  return { permission, pattern, action, when };
}

/** Returns each rule of a list once, with the first of the texts that it matches; empty for the pattern itself, which comes first. */
export function firstMatchOfEach(found: readonly { text: string; matches: readonly Match[] }[]): TracedMatch[] {
  const [first, ...others] = found;
  if (first && others.length === 0) return first.matches.map((match) => ({ ...match, text: "" }));
  const byIndex = new Map<number, TracedMatch>();
  for (const [i, { text, matches }] of found.entries()) {
    for (const match of matches)
      if (!byIndex.has(match.index)) byIndex.set(match.index, { ...match, text: i === 0 ? "" : text });
  }
  return [...byIndex.values()].sort((one, other) => one.index - other.index);
}

/** Finds the rule that decides: the last match in lists that count as one. Undefined if no rule matches. */
export function matchRule(
  compiled: CompiledRules,
  group: readonly LayerRules[],
  target: Target,
  steps: MatchSteps,
): Match | undefined {
  for (const list of group.toReversed()) {
    const placed = compiled(list.rules).last(target, steps);
    if (placed) return toMatch(list, placed);
  }
  return undefined;
}

/** Finds every rule of lists that count as one that matches a target, in order: the last one decides. */
export type MatchRules = (group: readonly LayerRules[], target: Target) => readonly Match[];

/** Creates a `MatchRules` that caches by text, for one decision: a command has many texts, and each is matched often. */
export function createMatchCache(compiled: CompiledRules, steps: MatchSteps): MatchRules {
  const known = new Map<LayerRules, Map<string, readonly Match[]>>();
  const matchesIn = (list: LayerRules, target: Target): readonly Match[] => {
    const ofList = known.get(list) ?? new Map<string, readonly Match[]>();
    known.set(list, ofList);
    const before = ofList.get(target.text);
    if (before) return before;
    const matches = compiled(list.rules)
      .all(target, steps)
      .map((placed) => toMatch(list, placed));
    ofList.set(target.text, matches);
    return matches;
  };
  return (group, target) => group.flatMap((list) => matchesIn(list, target));
}

/** Finds the first rule of any layer that asks or denies for a part of a permission only. */
export function findNarrowerRule(
  compiled: CompiledRules,
  { wide, narrow }: Layers,
  permission: string,
): Match | undefined {
  for (const list of [...wide, ...narrow]) {
    const placed = compiled(list.rules)
      .about(permission)
      .find(({ rule }) => rule.action !== PermissionAction.ALLOW && (rule.pattern !== "*" || rule.when));
    if (placed) return toMatch(list, placed);
  }
  return undefined;
}

function toMatch({ layer, source = "" }: LayerRules, { index, rule }: Placed): Match {
  return { layer, source, index, rule };
}

/** Returns the caution that forces an ask although rules or grants allow; undefined if there is none. `at` is the place in the patterns. */
export function caution(
  { permission, patterns, paths, alwaysAsk }: Ask,
  at: number,
  connectorFiles: ConnectorFiles,
  gitFiles?: GitFiles,
): Opinion | undefined {
  if (permission === questionPermission) return alwaysAsked("only a person can answer a question");
  const path = paths?.[at] ?? patterns[at] ?? "";
  const file =
    protectedFile(permission, path) ?? connectorFiles.describe(permission, path) ?? gitFile(permission, path, gitFiles);
  if (file !== undefined) return { ...alwaysAsked(""), reason: `engine: ${path} ${alwaysAskedFor(file)}` };
  const system = systemFile(permission, path);
  if (system !== undefined) return alwaysAsked(`${path} is ${system}`);
  return alwaysAsk === undefined ? undefined : alwaysAsked(`${path} ${alwaysAsk}`);
}

/** Checks if a decision asks because its path holds the settings of a repository, and for no other reason. */
export function asksForGitSettings({ pattern, reason }: Pick<PermissionDecision, "pattern" | "reason">): boolean {
  const what = protectedFile("edit", pattern);
  return isGitSettings(pattern) && what !== undefined && reason.endsWith(`.git/config ${alwaysAskedFor(what)}`);
}

/** Returns the caution about text of which an approver would not see everything. */
export function hiddenText(pattern: string): Opinion | undefined {
  const [warning] = warningsAbout(pattern);
  return warning === undefined ? undefined : alwaysAsked(warning);
}

/** Returns the caution about the port or path of an address that rules allow. */
export function addressCaution(address: Address, namesPort: boolean): Opinion | undefined {
  if (isAmbiguous(address)) return askedFirst("its path has an encoded `..` that only the server would decode");
  if (!namesPort) return askedFirst(`it has port ${address.port}, which the rule does not name`);
  return undefined;
}

/** Describes files of the kernel, which have other effects than plain files when read or written. */
function systemFile(permission: string, path: string): string | undefined {
  const folded = foldCase(path);
  if (/^\/proc\/(\d+|self|thread-self)(\/|$)/.test(folded)) return "the memory and environment of a process";
  if (permission === "external_directory" || folded === "/dev/null") return undefined;
  return /^\/(proc|sys|dev)(\/|$)/.test(folded) ? "an interface of the kernel, not a plain file" : undefined;
}

const alwaysAskedFor = (file: string) => `is ${file}: always asked`;

const askedFirst = (why: string): Opinion => ({ ...noMatch, reason: `${why}: ask`, code: PermissionReason.NOT_NAMED });
