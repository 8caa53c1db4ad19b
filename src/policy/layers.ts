import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { RequestError } from "../core/request-error.ts";
import { builtInAgents } from "./agents.ts";
import type { ConfiguredApprovals } from "./approval-rules.ts";
import type { LayerRules, Layers, Subject } from "./model.ts";
import { ruleProblem } from "./parse-rules.ts";
import { fromConfig, type Rule } from "./rules.ts";

/** The rules of the configuration: for all agents, and by agent. */
export interface ConfiguredRules {
  /** The rules of the preset; absent without one. */
  preset?: Preset | undefined;
  config: readonly Rule[];
  agents: ReadonlyMap<string, readonly Rule[]>;
  /** The entries of `[[approval]]`; absent: any approver approves, alone. */
  approvals?: ConfiguredApprovals | undefined;
  /** The rules that are judged beside these, and decide nothing. */
  shadow?: Omit<ConfiguredRules, "shadow"> | undefined;
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

/** A set of rules that the configuration chooses. */
export interface Preset {
  readonly name: "contained";
  /** The hosts from which commands may install packages by name. */
  readonly registries: readonly string[];
  readonly rules: readonly Rule[];
}

/** Creates the preset by which command lines run without an ask where the sandbox keeps what they do. */
export function containedPreset(registries: readonly string[]): Preset {
  const whole = { action: "allow", when: "contained" } as const;
  const tolerant = { action: "allow", when: "contained && risk.only(['network', 'outside', 'packages'])" } as const;
  const hosts = registries.map((host) => [`https://${host}/*`, whole]);
  // Only what a command line does carries the fact, so tools that edit files or fetch pages still ask.
  const rules = { bash: { "*": tolerant }, edit: { "*": whole }, webfetch: Object.fromEntries(hosts) };
  return { name: "contained", registries, rules: fromConfig(rules, "") };
}

/** Built-in rules: read-only tools are allowed inside the workspace, `.env` files ask. Anything else matches no rule, and asks. */
export const defaultRules: readonly Rule[] = fromConfig(
  {
    read: {
      "*": "allow",
      "*.env": "ask",
      "*.env.*": "ask",
      ".envrc": "ask",
      "*/.envrc": "ask",
      "*.env.example": "allow",
    },
    glob: "allow",
    grep: "allow",
    list: "allow",
    lsp: "allow",
    "todo*": "allow",
    question: "allow",
    skill: "allow",
    // Each call of a batch is judged separately.
    batch: "allow",
  },
  "",
);
