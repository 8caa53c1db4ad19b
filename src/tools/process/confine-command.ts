import { basename, relative } from "node:path";
import type { Ask } from "../../core/ask.ts";
import { visible } from "../../core/visible.ts";
import type { SandboxPlace } from "../../sandbox/confinement.ts";
import { TooManyMounts } from "../../sandbox/file-layer.ts";
import { isWithin } from "../../sandbox/is-within.ts";
import type { Argv, Confined, Covered, CoveredPaths } from "../../sandbox/layers.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { ToolFailure } from "../../tool/errors.ts";

/** Confines a command. Asks if it could reach more restricted files than the sandbox can cover one by one. */
export async function confineCommand(
  sandbox: Pick<Sandbox, "confine">,
  argv: Argv,
  place: SandboxPlace,
  ask: (ask: Ask) => Promise<void>,
): Promise<Confined> {
  try {
    return await sandbox.confine(argv, place);
  } catch (cause) {
    if (!(cause instanceof TooManyMounts)) {
      throw new ToolFailure(`The command was not run, since its sandbox cannot be prepared: ${String(cause)}`, {
        cause,
      });
    }
    const { files, workspace } = place;
    if (files === undefined) throw cause;
    await ask(askForAll(cause, workspace));
    const allowed = cause.use === "read" ? { mayRead: true } : { mayEdit: true };
    return await confineCommand(sandbox, argv, { ...place, files: { ...files, ...allowed } }, ask);
  }
}

function askForAll({ use, count, maxMasks }: TooManyMounts, workspace: string): Ask {
  const verb = use === "read" ? "read" : "changed";
  const effect = use === "read" ? "can read all of them" : "can change the others";
  const what =
    count === undefined
      ? "holds more directories than can be searched for files that may not be read"
      : `holds ${count} files that may not be ${verb}, and the sandbox can cover ${maxMasks}`;
  return {
    permission: use,
    patterns: ["."],
    paths: [workspace],
    alwaysAsk: `${what}; if you allow it, the command ${effect}`,
    ...(count !== undefined && { metadata: { files: count } }),
  };
}

/** Covered paths in results: their number, and the first ones. */
export interface ShownCovered {
  count: number;
  paths: string[];
}

const maxShown = 10;

/** Describes hidden paths for results: relative to the workspace, with the invisible made visible. */
export function shownPaths(covered: readonly Covered[], workspace: string): ShownCovered {
  return { count: covered.length, paths: covered.slice(0, maxShown).map(({ path }) => shownPath(path, workspace)) };
}

function shownPath(path: string, workspace: string): string {
  return visible(isWithin(path, workspace) ? relative(workspace, path) || "." : path);
}

/** Errors by which programs report a covered path. */
const refusals = /Permission denied|Read-only file system|Device or resource busy|EACCES|EROFS|EBUSY/;
const maxNoted = 3;

/**
 * Explains errors of a command that come from its sandbox: for each covered path that its last output names, the rule and the
 * next step. Undefined if there is none.
 */
export function explainRefusals(
  tail: string,
  { hidden, readOnly }: CoveredPaths,
  workspace: string,
): string | undefined {
  if (!refusals.test(tail)) return undefined;
  const named = (covered: readonly Covered[]) => covered.filter(({ path }) => tail.includes(basename(path)));
  const lines = [
    ...named(hidden).map(
      ({ path, reason }) =>
        `${shownPath(path, workspace)} is hidden from this command: ${visible(reason)}. Use the read tool, which asks if rules allow that.`,
    ),
    ...named(readOnly).map(
      ({ path, reason }) =>
        `${shownPath(path, workspace)} is read-only for this command: ${visible(reason)}. Call again with edits: [${JSON.stringify(shownPath(path, workspace))}], which asks.`,
    ),
  ];
  return lines.length === 0 ? undefined : lines.slice(0, maxNoted).join("\n");
}
