import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { builtInAgents } from "../policy/agents.ts";
import type { ConfiguredRules } from "../policy/layers.ts";
import { parseRules, rulePaths } from "../policy/parse-rules.ts";
import { containedPreset, type Preset } from "../policy/preset.ts";
import type { Rule } from "../policy/rules.ts";
import type { PolicySettings, Settings } from "./schema.ts";
import type { Toml } from "./toml.ts";

/** A list of rules, with the lines on which they are written. */
export interface WrittenRules {
  readonly rules: readonly Rule[];
  /** Returns the line on which a rule is written. */
  lineOf(index: number): number | undefined;
}

/** An agent, with the rules that the configuration adds to it. */
export interface Agent extends WrittenRules {
  readonly description: string;
}

/** A decision that the rules must lead to; otherwise the service does not start. */
export type RuleTest = Settings["permission_test"][number] & { readonly line: number | undefined };

/** The permission settings of a configuration. */
export interface WrittenPolicy {
  readonly preset: Preset | undefined;
  readonly config: WrittenRules;
  /** The built-in agents, then the others as configured. */
  readonly agents: ReadonlyMap<string, Agent>;
  readonly tests: readonly RuleTest[];
}

/** Reads the rules, agents and tests of the settings. */
export function readPolicy(
  {
    permission,
    agent,
    permission_test = [],
    preset,
  }: PolicySettings & Partial<Pick<Settings, "permission_test" | "preset">>,
  lineOf: Toml["lineOf"],
  home: string,
): WrittenPolicy {
  const written = (table: unknown, path: readonly string[]): WrittenRules => {
    const paths = rulePaths(table ?? {});
    return {
      rules: parseRules(table ?? {}, path.join("."), home),
      lineOf: (index) => lineOf([...path, ...(paths[index] ?? [])]),
    };
  };
  const agents = new Map<string, Agent>();
  for (const name of new Set([...builtInAgents.keys(), ...Object.keys(agent)])) {
    const own = agent[name];
    agents.set(name, {
      description: own?.description ?? builtInAgents.get(name)?.description ?? "",
      ...written(own?.permission, ["agent", name, "permission"]),
    });
  }
  return {
    preset: preset?.name && containedPreset(preset.registries),
    config: written(permission, ["permission"]),
    agents,
    tests: permission_test.map((test, i) => ({ ...test, line: lineOf(["permission_test", i]) })),
  };
}

/** Returns the line of a rule by its layer, its agent and its index there; undefined if no line of the configuration has it. */
export function ruleLine(
  { config, agents }: WrittenPolicy,
  layer: PermissionLayer,
  agent: string,
  index: number,
): number | undefined {
  if (layer === PermissionLayer.CONFIG) return config.lineOf(index);
  if (layer === PermissionLayer.AGENT) return agents.get(agent)?.lineOf(index);
  if (layer !== PermissionLayer.AGENT_LIMITS && layer !== PermissionLayer.INHERITED) return undefined;
  // The configured rules of an agent follow its built-in limits.
  const own = index - (builtInAgents.get(agent)?.limits.length ?? 0);
  return own < 0 ? undefined : agents.get(agent)?.lineOf(own);
}

/** Reduces a configured policy to the rules from which layers are built. */
export function configuredRules({ preset, config, agents }: WrittenPolicy): ConfiguredRules {
  return { preset, config: config.rules, agents: new Map([...agents].map(([name, { rules }]) => [name, rules])) };
}
