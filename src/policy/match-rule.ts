import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { LayerRules, Layers, MatchSteps } from "./model.ts";
import type { Match } from "./opinion.ts";
import type { CompiledRules, Placed, Target } from "./rule-list.ts";

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
