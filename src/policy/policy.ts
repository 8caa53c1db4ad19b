import { PermissionAction, type PermissionDecision } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { allowedFiles } from "./allowed-files.ts";
import { canAsk } from "./can-ask.ts";
import { createCompiledRules, rulesOf } from "./compiled-rules.ts";
import { createConnectorFiles } from "./connector-files.ts";
import { decideLine, decidePattern, decideWithoutPattern, type PolicyState } from "./decide.ts";
import type { FileRules } from "./file-rules.ts";
import { createFileGuard, deniedPaths, type Guard } from "./guard.ts";
import { createMatchSteps } from "./match-steps.ts";
import { type ExpandedAsk, factsOfCall, type Layers, type Wall } from "./model.ts";
import { type ReadPlace, readDoubts } from "./read-doubts.ts";
import { expand } from "./shell/expand.ts";
import type { Files } from "./shell/touched.ts";

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
    /** Judges an ask: one decision for each pattern. An ask without patterns gets one, which is never ALLOW. */
    judge,
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
