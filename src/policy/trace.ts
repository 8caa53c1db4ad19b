import { create } from "@bufbuild/protobuf";
import { type RuleMatch, RuleMatchSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Match } from "./opinion.ts";

/** What a decision tells of the rules that matched. */
export interface Trace {
  matches: RuleMatch[];
  moreMatches: number;
}

/** A match, and the spelling that was met, where that is not the pattern itself. */
export interface Met extends Match {
  text: string;
}

/** A decision is kept with its trace, and whoever writes rules decides how many there are. */
const most = 50;

/** Tells the rules that met a pattern or another spelling of it, in order; the deciding one is never left out. */
export function traceOf(met: readonly Met[], decided: Match | undefined): Trace {
  const isDeciding = (match: Match) => match.rule === decided?.rule && match.layer === decided.layer;
  const first = Math.max(0, met.length - most);
  const kept = met.filter((match, place) => place >= first || isDeciding(match));
  return {
    matches: kept.map((match) =>
      create(RuleMatchSchema, {
        layer: match.layer,
        source: match.source,
        ruleIndex: match.index,
        rule: { permission: match.rule.permission, pattern: match.rule.pattern, action: match.rule.action },
        text: match.text,
        decided: isDeciding(match),
      }),
    ),
    moreMatches: met.length - kept.length,
  };
}
