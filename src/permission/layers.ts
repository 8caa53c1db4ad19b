import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { defaultRules } from "./default-rules.ts";
import { RequestError } from "./errors.ts";
import { ruleProblem } from "./parse-rules.ts";
import type { LayerRules, Layers } from "./policy.ts";
import type { Rule } from "./rules.ts";

/** Gathers the rules that hold for a call: what only configuration can widen, and what each session of the chain narrows. */
export function createLayers({
  config,
  agents,
}: {
  config: readonly Rule[];
  agents: ReadonlyMap<string, readonly Rule[]>;
}) {
  return ({
    session,
    ancestors,
    agent,
  }: {
    session: Session | undefined;
    ancestors: readonly Session[];
    agent: string;
  }): Layers => {
    const inherited = ancestors.flatMap((ancestor): LayerRules[] => [
      { layer: PermissionLayer.INHERITED, source: ancestor.id, rules: ancestor.rules },
      {
        layer: PermissionLayer.INHERITED,
        source: `agent ${ancestor.agent}`,
        rules: agents.get(ancestor.agent) ?? none,
      },
    ]);
    return {
      wide: [
        { layer: PermissionLayer.DEFAULTS, rules: defaultRules },
        { layer: PermissionLayer.CONFIG, rules: config },
        { layer: PermissionLayer.AGENT, source: agent, rules: agents.get(agent) ?? none },
      ],
      narrow: session
        ? [...inherited, { layer: PermissionLayer.SESSION, source: session.id, rules: session.rules }]
        : inherited,
    };
  };
}

/** Refuses rules of a request that could not stand in a configuration either. */
export function checkRules(field: string, rules: readonly Rule[]): void {
  for (const [i, rule] of rules.entries()) {
    const problem = ruleProblem(rule);
    if (problem)
      throw new RequestError(ErrorReason.INVALID_MESSAGE, `${field}[${i}] ${problem}`, { field: `${field}[${i}]` });
  }
}

const none: readonly Rule[] = [];
