import { lstatSync, readFileSync } from "node:fs";
import { isWithin } from "../core/paths.ts";
import type { PlaceFiles, SandboxPlace } from "./confinement.ts";
import type { LayerShare } from "./layers.ts";
import type { MountPoints } from "./mount-points.ts";

/** The paths that calls were allowed to edit while a command ran: canonical ones, and those with all that is below. */
export interface AllowedMeanwhile {
  readonly edit: ReadonlySet<string>;
  readonly editTrees: ReadonlySet<string>;
}

/** One running command. */
export interface RunningCommand extends AllowedMeanwhile {
  leave(): void;
}

/** The commands that run now, with the files that are mounted for them, and what others change meanwhile. */
export type RunningCommands = ReturnType<typeof createRunningCommands>;

interface Entry {
  edit: Set<string>;
  editTrees: Set<string>;
  mounted: readonly string[];
}

/** Creates the list of running commands of one service. */
export function createRunningCommands() {
  const entries = new Set<Entry>();
  return {
    /** Adds a command before its mounts are made. `mounted` are the files that are mounted over one by one. */
    enter(
      { edit, editTrees = [] }: Pick<PlaceFiles, "edit" | "editTrees">,
      mounted: readonly string[],
    ): RunningCommand {
      const entry: Entry = { edit: new Set(edit), editTrees: new Set(editTrees), mounted };
      // What one was allowed may appear while another one runs.
      for (const other of entries) {
        for (const path of other.edit) entry.edit.add(path);
        for (const path of other.editTrees) entry.editTrees.add(path);
        for (const path of edit) other.edit.add(path);
        for (const path of editTrees) other.editTrees.add(path);
      }
      entries.add(entry);
      return { edit: entry.edit, editTrees: entry.editTrees, leave: () => void entries.delete(entry) };
    },
    /** Checks if a file is mounted over for a running command: another file of its name would not be covered. */
    isMounted: (path: string): boolean => [...entries].some(({ mounted }) => mounted.includes(path)),
    /** Reports that a call has written, or an approver allowed, a path. */
    wrote(path: string): void {
      for (const { editTrees } of entries) editTrees.add(path);
    },
  };
}

/**
 * Covers the socket files of other programs in the workspace and in allowed directories, for commands that may open sockets of the
 * family UNIX: a server behind one has the rights of its user. `files` is the share of the mounts about files. The kernel lists the
 * sockets of the network namespace of this process, so what commands serve in the namespace of their session stays reachable.
 */
export function coverHostSockets(
  files: LayerShare,
  { workspace, directories }: Pick<SandboxPlace, "workspace" | "directories">,
  mountPoints: Pick<MountPoints, "hold">,
): LayerShare {
  const roots = [workspace, ...directories.map(({ path }) => path).filter((path) => path !== "/")];
  const sinceMs = Date.now();
  const found = socketFiles(roots).filter((path) => !isHiddenBy(files, path));
  if (found.length === 0) return files;
  const held = mountPoints.hold({ absent: [], mounted: found, sinceMs });
  const covers = found.flatMap((path) => ["--ro-bind", "/dev/null", path]);
  return {
    ...files,
    args: { ...files.args, masks: [...(files.args?.masks ?? []), ...covers] },
    async release() {
      await files.release?.();
      held.free();
    },
  };
}

/** Checks if a path is hidden with a directory above it, in which nothing can be mounted, and not shown again below that. */
function isHiddenBy({ covered, args }: LayerShare, path: string): boolean {
  const above = covered?.hidden.find((hidden) => isWithin(path, hidden.path));
  const shown = args?.directories ?? [];
  return above !== undefined && !shown.some((one) => one.length > above.path.length && isWithin(path, one));
}

/** Lists the socket files of programs of this machine below directories. */
function socketFiles(roots: readonly string[]): string[] {
  const lines = readFileSync("/proc/net/unix", "utf8").split("\n");
  const paths = lines.map((line) => /^(?:\S+\s+){7}(\/.+)$/.exec(line)?.[1] ?? "");
  // Those of other users lie in directories that cannot be searched.
  const below = paths.filter((path) => path !== "" && roots.some((root) => isWithin(path, root)));
  return [...new Set(below)].filter((path) => lstatSync(path, { throwIfNoEntry: false })?.isSocket() ?? false);
}
