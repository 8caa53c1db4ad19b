import { existsSync, readFileSync } from "node:fs";
import { reachableStats } from "./git-directories.ts";
import type { LayerShare } from "./layers.ts";

/** Paths that the mounts of a command have to cover, with the identity that they had when the mounts were planned. */
export interface ExpectedMounts {
  readonly identities: ReadonlyMap<string, string>;
  /** Files that the mask file is mounted over, and its identity. */
  readonly masked: readonly string[];
  readonly maskIdentity: string | undefined;
  /** Directories that are replaced by a new one. */
  readonly emptied: readonly string[];
  /** Arguments of bubblewrap, some of which mount paths over themselves. */
  readonly args: NonNullable<LayerShare["args"]>;
  /** Directories in which the command works. */
  readonly roots: readonly string[];
}

/**
 * Checks the mounts of a command that waits for its start. A program that renames files meanwhile could have led a mount to another
 * one. Returns the path that is not covered; undefined if all are.
 */
export function uncoveredPath(pid: number, expected: ExpectedMounts): string | undefined {
  const { identities, masked, maskIdentity, emptied, args, roots } = expected;
  const inside = (path: string) => identityOf(`/proc/${pid}/root${path}`);
  // Where a file was gone for a moment, bubblewrap made another one to mount on. That is gone once the file is back, so the host
  // is read before the inside.
  const isThere = (path: string) => identityOf(path) === identities.get(path);
  const isEmptied = (path: string) => {
    const [device] = inside(path)?.split(":") ?? [];
    return device !== undefined && device !== identities.get(path)?.split(":")[0];
  };
  const bound = boundPaths(args).filter((path) => identities.has(path));
  const missed =
    masked.find((path) => !isThere(path) || inside(path) !== maskIdentity) ??
    emptied.find((path) => !isThere(path) || !isEmptied(path)) ??
    [...bound, ...roots].find((path) => identities.has(path) && inside(path) !== identities.get(path));
  if (missed !== undefined) return missed;
  const mounted = mountPointsOf(pid);
  return [...masked, ...emptied, ...bound].find((path) => !mounted.has(path));
}

/** Returns the identity of a file or directory as text; undefined if there is none. */
export function identityOf(path: string): string | undefined {
  const stats = reachableStats(path);
  return stats === undefined || stats === "unreachable" ? undefined : `${stats.dev}:${stats.ino}`;
}

/** Lists the paths that are mounted over themselves. */
function boundPaths({ directories = [], pins = [], readOnly = [] }: ExpectedMounts["args"]): string[] {
  return [directories, pins, readOnly].flatMap((list) =>
    list.filter((path, i) => path === list[i + 1] && /^--(ro-)?bind(-try)?$/.test(list[i - 1] ?? "")),
  );
}

/**
 * Places in /proc by which a process of the user 0 changes the machine: it needs no capability for most of them. bubblewrap covers
 * the others.
 */
export const kernelSwitches = ["sys", "sysrq-trigger", "fs", "acpi", "scsi"].map((name) => `/proc/${name}`);

/** Returns the reason why a command that waits for its start must not: a place in /proc that it could write to. */
export function writableSwitch(pid: number): string | undefined {
  const mounted = mountPointsOf(pid);
  const path = kernelSwitches.find((place) => existsSync(place) && !mounted.get(place)?.split(",").includes("ro"));
  return path && `nothing was run, since ${path} is not read-only in the sandbox`;
}

/** Reads where a process has mounts, as they are called now, with their options: a mount goes with the directory that it is in. */
function mountPointsOf(pid: number): ReadonlyMap<string, string> {
  const lines = readFileSync(`/proc/${pid}/mountinfo`, "utf8").split("\n");
  return new Map(
    lines.map((line) => {
      const [, , , , path = "", options = ""] = line.split(" ");
      return [unescaped(path), options];
    }),
  );
}

const unescaped = (path: string) =>
  Buffer.from(
    path.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8))),
    "utf8",
  ).toString();
