import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { RequestError } from "../core/request-error.ts";
import { builtInAgents } from "./agents.ts";
import { defaultRules } from "./default-rules.ts";
import type { LayerRules, Layers } from "./model.ts";
import { ruleProblem } from "./parse-rules.ts";
import type { Preset } from "./preset.ts";
import type { Rule } from "./rules.ts";
import type { Subject } from "./subject.ts";

/** The rules of the configuration: for all agents, and by agent. */
export interface ConfiguredRules {
  /** The rules of the preset; absent without one. */
  preset?: Preset | undefined;
  config: readonly Rule[];
  agents: ReadonlyMap<string, readonly Rule[]>;
}

/** The subject of layers. Without a directory no policy file of a workspace applies. */
export type LayersFor = Pick<Subject, "session" | "ancestors" | "agent"> &
  (Pick<Subject, "workspace" | "directory"> | { workspace?: never; directory?: undefined });

/**
 * Creates the function that collects the rules for a call: the wide layers, which only configuration sets, and those that
 * narrow: the limits of a built-in agent, the policy files of the workspace, and each session of the chain.
 */
export function createLayers(
  { preset, config, agents }: ConfiguredRules,
  workspaceRules: (subject: Pick<Subject, "workspace" | "directory" | "agent">) => readonly LayerRules[] = () => [],
) {
  // Built once: compiled rules are cached by the identity of the array.
  const limits = new Map(
    [...builtInAgents]
      .filter(([, { limits }]) => limits.length > 0)
      .map(([name, { limits }]) => [name, [...limits, ...(agents.get(name) ?? none)]]),
  );

  return ({ session, ancestors, agent, workspace, directory }: LayersFor): Layers => {
    const inherited = ancestors.flatMap((ancestor): LayerRules[] => [
      { layer: PermissionLayer.INHERITED, source: ancestor.id, rules: ancestor.rules },
      {
        layer: PermissionLayer.INHERITED,
        source: `agent ${ancestor.agent}`,
        rules: limits.get(ancestor.agent) ?? agents.get(ancestor.agent) ?? none,
      },
    ]);
    const limited = limits.get(agent);
    const own: LayerRules[] = limited ? [{ layer: PermissionLayer.AGENT_LIMITS, source: agent, rules: limited }] : [];
    const files = directory === undefined ? [] : workspaceRules({ workspace, directory, agent });
    const narrow = [...own, ...files.filter(({ widens }) => !widens), ...inherited];
    return {
      ...(preset && { registries: preset.registries }),
      wide: [
        { layer: PermissionLayer.DEFAULTS, rules: defaultRules },
        ...(preset ? [{ layer: PermissionLayer.PRESET, rules: preset.rules }] : []),
        { layer: PermissionLayer.CONFIG, rules: config },
        ...files.filter(({ widens }) => widens),
        { layer: PermissionLayer.AGENT, source: agent, rules: agents.get(agent) ?? none },
      ],
      narrow: session
        ? [...narrow, { layer: PermissionLayer.SESSION, source: session.id, rules: session.rules }]
        : narrow,
    };
  };
}

/** The size of all patterns of one list that a request brings: a thousand rules of common length. */
const maxListBytes = 262_144;

/** Refuses rules of a request that a configuration could not have either, and lists that take long to compile. */
export function checkRules(field: string, rules: readonly Rule[]): void {
  const bytes = rules.reduce((sum, { permission, pattern }) => sum + permission.length + Buffer.byteLength(pattern), 0);
  if (bytes > maxListBytes)
    throw new RequestError(
      ErrorReason.INVALID_MESSAGE,
      `${field} has ${bytes} bytes of permissions and patterns, over the limit of ${maxListBytes}; send fewer or shorter rules`,
      { field },
    );
  for (const [i, rule] of rules.entries()) {
    const problem = rule.when ? noConditions : ruleProblem(rule);
    if (problem)
      throw new RequestError(ErrorReason.INVALID_MESSAGE, `${field}[${i}] ${problem}`, { field: `${field}[${i}]` });
  }
}

const noConditions = "has a condition (when), which only rules of the configuration and of trusted workspaces can have";
const none: readonly Rule[] = [];
