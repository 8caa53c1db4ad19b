import type { LayerRules } from "./model.ts";
import { compileRules, type RuleList } from "./rule-list.ts";
import type { Rule } from "./rules.ts";

/** Returns the compiled form of a list of rules. */
export type CompiledRules = (rules: readonly Rule[]) => RuleList;

/**
 * Creates a cache of compiled rule lists. Its key is the identity of the array: equal rules in a new array are compiled
 * again, and a change to a known array goes unnoticed. So layers hand over the same array for each decision, and never
 * change it. An array that nothing else refers to leaves the cache.
 */
export function createCompiledRules(home: string): CompiledRules {
  const lists = new WeakMap<readonly Rule[], RuleList>();
  return (rules) => {
    const list = lists.get(rules) ?? compileRules(rules, home);
    lists.set(rules, list);
    return list;
  };
}

/** Returns a function that selects the rules of a layer that concern a permission. */
export function rulesOf(compiled: CompiledRules, permission: string) {
  return ({ rules }: Pick<LayerRules, "rules">): Rule[] =>
    compiled(rules)
      .about(permission)
      .map(({ rule }) => rule);
}
