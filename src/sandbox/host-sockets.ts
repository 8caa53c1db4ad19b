import { lstatSync, readFileSync } from "node:fs";
import type { SandboxPlace } from "./confinement.ts";
import { isWithin } from "./is-within.ts";
import type { LayerShare } from "./layers.ts";
import type { MountPoints } from "./mount-points.ts";

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
  const found = socketFiles().filter((path) => roots.some((root) => isWithin(path, root)) && !isHiddenBy(files, path));
  if (found.length === 0) return files;
  const free = mountPoints.hold({ absent: [], mounted: found, sinceMs });
  const covers = found.flatMap((path) => ["--ro-bind", "/dev/null", path]);
  return {
    ...files,
    args: { ...files.args, masks: [...(files.args?.masks ?? []), ...covers] },
    async release() {
      await files.release?.();
      free();
    },
  };
}

/** Checks if a path is hidden with a directory above it, in which nothing can be mounted, and not shown again below that. */
function isHiddenBy({ covered, args }: LayerShare, path: string): boolean {
  const above = covered?.hidden.find((hidden) => isWithin(path, hidden.path));
  const shown = args?.directories ?? [];
  return above !== undefined && !shown.some((one) => one.length > above.path.length && isWithin(path, one));
}

/** Lists the socket files of programs of this machine. */
function socketFiles(): string[] {
  const lines = readFileSync("/proc/net/unix", "utf8").split("\n");
  const paths = lines.map((line) => /^(?:\S+\s+){7}(\/.+)$/.exec(line)?.[1] ?? "");
  return [...new Set(paths)].filter((path) => {
    const stats = path === "" ? undefined : lstatSync(path, { throwIfNoEntry: false });
    return stats?.isSocket() ?? false;
  });
}
