import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  PermissionLayer,
  PermissionReason,
  type RuleMatch,
  RuleMatchSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { maxMatchSteps } from "./model.ts";
import type { Placed } from "./rule-list.ts";
import { actions, type Rule } from "./rules.ts";

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
export function alwaysAsked(why: string): Opinion {
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
