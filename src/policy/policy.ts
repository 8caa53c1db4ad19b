import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { type ConfiguredApprovals, type NeededApproval, neededApproval } from "./approval-rules.ts";
import { decideLine, decidePattern, decideWithoutPattern, type PolicyState } from "./decide.ts";
import type { FileRules } from "./file-rules.ts";
import { createFileGuard, deniedPaths, type Guard } from "./guard.ts";
import {
  createMatchSteps,
  type ExpandedAsk,
  factsOfCall,
  type LayerRules,
  type Layers,
  type MatchSteps,
  type Subject,
  TooManySteps,
  type Wall,
} from "./model.ts";
import { matchRule } from "./opinion.ts";
import { createConnectorFiles, gitFile, protectedFile } from "./protected-files.ts";
import { type ReadPlace, readDoubts } from "./read-doubts.ts";
import { type CompiledRules, createCompiledRules, isPathKind, rulesOf, type Target, targetOf } from "./rule-list.ts";
import type { Rule } from "./rules.ts";
import { expand } from "./shell/expand.ts";
import type { Allowed, Files, MayAccess } from "./shell/touched.ts";

export { strictest } from "./opinion.ts";

/** Evaluates rules, and explains its decisions. */
export type Policy = ReturnType<typeof createPolicy>;

/**
 * Creates the policy. It reads no files and no sessions: the same ask and layers always give the same decision, as long as
 * `connectorFiles` returns the same paths.
 */
export function createPolicy({
  guard,
  home,
  connectorFiles: paths = () => [],
}: {
  guard: Guard;
  home: string;
  connectorFiles?: () => readonly string[];
}) {
  const compiled = createCompiledRules(home);
  const connectorFiles = createConnectorFiles(paths);
  const state: PolicyState = { compiled, guard: createFileGuard(guard, home), connectorFiles };
  const denied = deniedPaths(guard);
  const hintsFor = (place: ReadPlace, layers: Layers) =>
    readDoubts(place, layers, { about: rulesOf(compiled, "read"), denied, home, connectorFiles });
  const usesContainment = ({ wide, narrow }: Layers) =>
    [...wide, ...narrow].some(({ rules }) => compiled(rules).usesContainment);

  function judge(ask: ExpandedAsk, layers: Layers): PermissionDecision[] {
    const steps = layers.steps ?? createMatchSteps();
    if (ask.patterns.length === 0) return [decideWithoutPattern(state, ask, layers, steps)];
    const decisions = ask.patterns.map((_, at) => decidePattern(state, ask, at, layers, { analyse: true, steps }));
    return [...decisions, ...decideLine(state, ask, layers, steps)];
  }

  return {
    /** Expands an ask into everything that it stands for; a command line into its commands and the files that they touch. */
    expand(ask: ExpandedAsk, layers: Layers, files: Files): Promise<ExpandedAsk[]> {
      const allowed = allowedFiles(state, layers, (directory) => hintsFor(directory, layers));
      const { registries = [] } = layers;
      return expand(ask, files, allowed, home, ask.wall && usesContainment(layers) ? containment(ask.wall) : undefined);

      function containment(wall: Wall) {
        return { wall, home, registries, judge: (one: ExpandedAsk) => judge({ ...one, ...factsOfCall(ask) }, layers) };
      }
    },
    /** Checks if rules have a condition on `contained`. */
    usesContainment,
    /** Judges an ask: one decision for each pattern. An ask without patterns gets one, which is never ALLOW. */
    judge,
    /** Returns who has to approve an ask; undefined: any approver, alone. */
    approvalOf: (
      approvals: ConfiguredApprovals | undefined,
      ask: ExpandedAsk,
      subject: Pick<Subject, "agent" | "workspace">,
    ): NeededApproval | undefined => approvals && neededApproval(compiled, approvals, ask, subject),
    /** Returns the words that identify possibly restricted files below a directory; see `readDoubts`. */
    readDoubts: hintsFor,
    /** Returns everything that decisions about files depend on, as data for another thread. */
    fileRules: ({ wide, narrow, gitFiles }: Layers): FileRules => ({
      ...{ wide, narrow, guard, home, connectorFiles: paths() },
      ...(gitFiles && { gitFiles }),
    }),
    /** Lists the permissions that can end in an ask, of the known ones and those that rules name; `*` stands for any other. */
    asking({ wide, narrow }: Layers, known: readonly string[]): string[] {
      const named = [...wide, ...narrow].flatMap(({ rules }) => rules.map(({ permission }) => permission));
      const isUnreadable = narrow.some(({ problem }) => problem !== undefined);
      return [...new Set([...known, ...named, "*"])]
        .filter(
          (name) =>
            isUnreadable || canAsk(name, wide.flatMap(rulesOf(compiled, name)), narrow.map(rulesOf(compiled, name))),
        )
        .sort();
    },
    /** Checks if a permission is always denied: `*` and the pattern of each rule about it, taken as texts, are denied without a condition. */
    hides(layers: Layers, permission: string): boolean {
      const rules = [...layers.wide, ...layers.narrow].flatMap(rulesOf(compiled, permission));
      const patterns = ["*", ...rules.map(({ pattern }) => pattern)];
      const steps = layers.steps ?? createMatchSteps();
      return patterns.every((_, at) => {
        const { action, rule } = decidePattern(state, { permission, patterns }, at, layers, { analyse: false, steps });
        return action === PermissionAction.DENY && !rule?.when;
      });
    },
  };
}

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

/**
 * Checks if an ask of a permission can reach an approver. `wide` are the rules about it that count as one list; each of
 * `narrow` counts separately. May return true where the rules never ask, but never false where they can.
 */
function canAsk(permission: string, wide: readonly Rule[], narrow: readonly (readonly Rule[])[]): boolean {
  const lists = [deciding(wide), ...narrow.map(deciding)];
  if (lists.some(({ rules, complete }) => complete && rules.every(({ action }) => action === DENY))) return false;
  if (asksItself(permission) || !deciding(wide).complete) return true;
  return lists.some(({ rules }) => rules.some(({ action }) => action === ASK));
}

/** For commands, files and addresses the engine itself asks in cases that rules allow, such as protected files; for questions always. */
function asksItself(permission: string): boolean {
  const always = permission === questionPermission;
  return always || permission === "bash" || permission === "webfetch" || isPathKind(permission);
}

/** Returns the rules that can be the last match: the last rule for every pattern, and those after it. */
function deciding(rules: readonly Rule[]): { rules: readonly Rule[]; complete: boolean } {
  const first = rules.findLastIndex(({ pattern, when }) => pattern === "*" && !when);
  return { rules: rules.slice(Math.max(0, first)), complete: first !== -1 };
}

const { ASK, DENY } = PermissionAction;
