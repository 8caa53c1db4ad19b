import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { warningsAbout } from "./display.ts";
import { createGuard, type Guard } from "./guard.ts";
import { type Match, type Opinion, opinionBy, strictestOf } from "./opinion.ts";
import { compileRules, type RuleList, targetOf } from "./rule-list.ts";
import type { Rule } from "./rules.ts";
import { readCommand } from "./shell/command.ts";
import { judgeCommand } from "./shell/judge.ts";
import { expand } from "./shell/outside.ts";

export { strictest } from "./opinion.ts";

/** What is to be judged: all patterns of one ask. */
export interface Question {
  permission: string;
  patterns: readonly string[];
  /** For kinds that are judged by path: the canonical absolute path of each pattern. */
  paths?: readonly string[];
  /** For commands: the canonical folder in which they would run. */
  cwd?: string;
  /** The wildcards that "always" may save beside exactly what is asked. */
  always?: readonly string[];
}

/** A list of rules and where it stands. The array is not to be changed once it was judged by. */
export interface LayerRules {
  layer: PermissionLayer;
  rules: readonly Rule[];
}

/** The rules that hold for one call. */
export interface Layers {
  /** One list, in this order: the last match wins, none is ASK. */
  wide: readonly LayerRules[];
  /** Lists of their own: no match is no opinion, and of all lists the strictest wins. */
  narrow: readonly LayerRules[];
}

/** Decides what rules say, and why. */
export type Policy = ReturnType<typeof createPolicy>;

/** Makes the engine that judges asks. It knows no files and no sessions: the same question and layers give the same answer. */
export function createPolicy({ guard, home }: { guard: Guard; home: string }) {
  const refusal = createGuard(guard, home);
  const lists = new WeakMap<readonly Rule[], RuleList>();

  function listOf(rules: readonly Rule[]): RuleList {
    const list = lists.get(rules) ?? compileRules(rules, home);
    lists.set(rules, list);
    return list;
  }

  /** The last match of lists that count as one. */
  function lastMatch(
    group: readonly LayerRules[],
    permission: string,
    pattern: string,
    path?: string,
  ): Match | undefined {
    const target = targetOf(permission, pattern, path);
    for (const { layer, rules } of group.toReversed()) {
      const placed = listOf(rules).last(target);
      if (placed) return { layer, index: placed.index, rule: placed.rule };
    }
    return undefined;
  }

  /** A rule of any layer that asks or denies for a part of a permission only. */
  function narrower({ wide, narrow }: Layers, permission: string): Match | undefined {
    for (const { layer, rules } of [...wide, ...narrow]) {
      const placed = listOf(rules)
        .about(permission)
        .find(({ rule }) => rule.action !== PermissionAction.ALLOW && rule.pattern !== "*");
      if (placed) return { layer, index: placed.index, rule: placed.rule };
    }
    return undefined;
  }

  /** Judges one pattern; `analyse` reads commands, else the text is judged as it is. */
  function decide(question: Question, at: number, layers: Layers, analyse: boolean): PermissionDecision {
    const { permission, patterns, paths } = question;
    const pattern = patterns[at] ?? "";
    const refused = refusal(question, at);
    if (refused) {
      const reason = `engine: ${refused}`;
      return decision(permission, pattern, { action: PermissionAction.DENY, layer: PermissionLayer.ENGINE, reason });
    }
    const command = analyse && permission === "bash" ? readCommand(pattern) : undefined;
    const opinionOf = (group: readonly LayerRules[]) => {
      if (command) {
        const find = (text: string) => lastMatch(group, permission, text);
        return judgeCommand(command, find, () => narrower(layers, permission));
      }
      const match = lastMatch(group, permission, pattern, paths?.[at]);
      return match && opinionBy(match);
    };
    const narrow = layers.narrow.map((list) => opinionOf([list])).filter((opinion) => opinion !== undefined);
    const opinion = strictestOf([opinionOf(layers.wide) ?? noMatch, ...narrow]) ?? noMatch;
    return decision(permission, pattern, opinion.action === PermissionAction.ALLOW ? seen(pattern, opinion) : opinion);
  }

  return {
    expand,
    /** Judges an ask: one decision for each pattern. An ask without patterns gets one, which is never ALLOW. */
    judge(question: Question, layers: Layers): PermissionDecision[] {
      if (question.patterns.length > 0) return question.patterns.map((_, at) => decide(question, at, layers, true));
      const found = decide({ ...question, patterns: [""] }, 0, layers, true);
      return [found.action === PermissionAction.ALLOW ? decision(question.permission, "", noPattern) : found];
    },
    /** Says which rule decides for each pattern as it is given: no command is analysed. */
    explain(question: Question, layers: Layers): PermissionDecision[] {
      return question.patterns.map((_, at) => decide(question, at, layers, false));
    },
    /** Whether a permission is denied whatever is asked: its own rule patterns, taken as texts, and `*` are all denied. */
    hides(layers: Layers, permission: string): boolean {
      const rules = [...layers.wide, ...layers.narrow].flatMap(({ rules }) => listOf(rules).about(permission));
      const patterns = ["*", ...rules.map(({ rule }) => rule.pattern)];
      return patterns.every(
        (_, at) => decide({ permission, patterns }, at, layers, false).action === PermissionAction.DENY,
      );
    },
  };
}

const noMatch: Opinion = {
  action: PermissionAction.ASK,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule matches: ask",
};
const noPattern: Opinion = { ...noMatch, reason: "nothing says what would be touched: ask" };

/** What a person would not see as it is, is never allowed without one. */
function seen(pattern: string, allowed: Opinion): Opinion {
  const [warning] = warningsAbout(pattern);
  if (warning === undefined) return allowed;
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.ENGINE,
    reason: `${allowed.reason}, but ${warning}: ask`,
  };
}

function decision(permission: string, pattern: string, { action, layer, reason, match }: Opinion): PermissionDecision {
  return create(PermissionDecisionSchema, {
    permission,
    pattern,
    action,
    layer,
    reason,
    ...(match && {
      ruleIndex: match.index,
      rule: { permission: match.rule.permission, pattern: match.rule.pattern, action: match.rule.action },
    }),
  });
}
