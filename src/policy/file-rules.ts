import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Guard } from "./guard.ts";
import type { LayerRules, Layers } from "./model.ts";

/** Everything that decisions about files depend on, as data that a thread can copy. */
export interface FileRules {
  readonly wide: readonly LayerRules[];
  readonly narrow: readonly LayerRules[];
  readonly guard: Guard;
  readonly home: string;
  /** The files that connectors of agents wrote. */
  readonly connectorFiles: readonly string[];
  readonly gitFiles?: Layers["gitFiles"];
}

/**
 * Returns the rules without those for every path, except for the built-in ones. By them a program sees its own code, for which no
 * call asks, also where `"*" = "ask"` is configured; a rule that names a path holds there, too.
 */
export function rulesThatName(rules: FileRules): FileRules {
  const named = (list: LayerRules): LayerRules =>
    list.layer === PermissionLayer.DEFAULTS
      ? list
      : { ...list, rules: list.rules.filter(({ pattern }) => !/^[*?/\\]+$/.test(pattern)) };
  return { ...rules, wide: rules.wide.map(named), narrow: rules.narrow.map(named) };
}
