import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { CompiledRules } from "./compiled-rules.ts";
import type { PolicyState } from "./decide.ts";
import { matchRule } from "./match-rule.ts";
import { createMatchSteps, type MatchSteps, TooManySteps } from "./match-steps.ts";
import type { LayerRules, Layers } from "./model.ts";
import { gitFile, protectedFile } from "./protected-files.ts";
import { type Target, targetOf } from "./rule-list.ts";
import type { Allowed, MayAccess } from "./shell/touched.ts";

type AllowedFilesState = Pick<PolicyState, "compiled" | "connectorFiles">;

/** Creates the quick filters for many files: which of them rules do not restrict, so that they need no decision. */
export function allowedFiles(state: AllowedFilesState, layers: Layers, readHints: Allowed["readHints"]): Allowed {
  return {
    read: mayAccess(state, layers, "read", PermissionAction.ALLOW),
    edit: mayAccess(state, layers, "edit", PermissionAction.ALLOW),
    notDeniedEdit: mayAccess(state, layers, "edit", PermissionAction.ASK),
    readHints,
  };
}

/**
 * Creates the filter of files for which no rule has a stricter action than `worst`. Once rules that callers or workspaces
 * bring have used up their budget, all further files count as restricted.
 */
function mayAccess(
  { compiled, connectorFiles }: AllowedFilesState,
  { wide, narrow, gitFiles }: Layers,
  permission: "read" | "edit",
  worst: PermissionAction,
): MayAccess {
  const restricts = ({ rules }: LayerRules) =>
    compiled(rules)
      .about(permission)
      .some(({ rule }) => rule.action > worst);
  const groups = [wide, ...narrow.map((list) => [list])].filter((group) => group.some(restricts));
  if (groups.length === 0) return undefined;
  const isProtected = (...file: [permission: string, path: string]) =>
    (protectedFile(...file) ?? connectorFiles.describe(...file) ?? gitFile(...file, gitFiles)) !== undefined;
  const brought = groups.flat().filter(({ layer }) => !configured.has(layer));
  const steps = createMatchSteps();
  const unlimited = createMatchSteps(Number.POSITIVE_INFINITY);
  let isUsedUp = false;
  return ({ pattern, absolute }) => {
    if (worst === PermissionAction.ALLOW && isProtected(permission, absolute)) return false;
    const target = targetOf(permission, pattern, absolute);
    isUsedUp ||= !hasSteps(steps, brought, target, compiled);
    if (isUsedUp) return false;
    return groups.every(
      (group) => (matchRule(compiled, group, target, unlimited)?.rule.action ?? PermissionAction.ALLOW) <= worst,
    );
  };
}

function hasSteps(steps: MatchSteps, lists: readonly LayerRules[], target: Target, compiled: CompiledRules): boolean {
  try {
    for (const { rules } of lists) steps.spend(compiled(rules).stepsFor(target));
    return true;
  } catch (cause) {
    if (cause instanceof TooManySteps) return false;
    throw cause;
  }
}

/** Layers that the operator writes. */
const configured: ReadonlySet<PermissionLayer> = new Set([
  PermissionLayer.DEFAULTS,
  PermissionLayer.PRESET,
  PermissionLayer.CONFIG,
  PermissionLayer.AGENT,
  PermissionLayer.AGENT_LIMITS,
]);
