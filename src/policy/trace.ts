import { create } from "@bufbuild/protobuf";
import { type RuleMatch, RuleMatchSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Match } from "./opinion.ts";
import type { Rule } from "./rules.ts";

/** The part of a decision that lists the rules that matched. */
export interface Trace {
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
