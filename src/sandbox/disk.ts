import { existsSync, lstatSync, realpathSync } from "node:fs";
import { join } from "node:path";
import type { SandboxPlace } from "./confinement.ts";
import { cacheDirectories, createSettingsFinder, findToolchains, programPaths } from "./home-layout.ts";
import { isWithin } from "./is-within.ts";
import { sharedTemporary } from "./session-directories.ts";
import { findSystemDirectories, type SystemDirectories } from "./system-directories.ts";

/** Places of the disk that commands see in addition to those that their call and the configuration name. */
export interface Disk {
  readonly system: SystemDirectories;
  /** The home directory, in the place of which commands see a private one; undefined if it lies in a directory that they see. */
  readonly home: string | undefined;
  /** A link that leads to the home directory. */
  readonly homeLink: string | undefined;
  /** Returns the paths of toolchains, of settings of tools, and of the programs that a place names. */
  programs(place: Pick<SandboxPlace, "programs">): string[];
}

/** Finds the system's directories, the home directory and the toolchains in it and in a search path, as they are now. */
export function openDisk({ home: named, searchPath }: { home: string; searchPath: string }): Disk {
  const isLink = existsSync(named) && lstatSync(named).isSymbolicLink();
  const home = isLink ? realpathSync(named) : named;
  const system = findSystemDirectories();
  // Commands can replace what lies in temporary directories, also a directory on which something is mounted.
  const isElsewhere = (path: string) => ![...system.paths, ...sharedTemporary].some((above) => isWithin(path, above));
  const hasHome = home !== "/" && isElsewhere(home);
  const toolchains = outermost(findToolchains(home, searchPath).filter(isElsewhere));
  const settings = hasHome ? createSettingsFinder(home) : () => [];
  return {
    system,
    home: hasHome ? home : undefined,
    homeLink: hasHome && isLink ? named : undefined,
    programs: ({ programs = [] }) =>
      outermost([
        ...toolchains,
        ...settings(),
        ...programs.flatMap((directory) => programPaths(directory, home)).filter(isElsewhere),
      ]),
  };
}

/** Returns the directories of caches below the home directory that hold none of the paths which are mounted. */
export function freeCaches(home: string, mounted: readonly string[]): string[] {
  return cacheDirectories.filter((name) => !mounted.some((path) => isWithin(path, join(home, name))));
}

/** Removes paths that lie below another one. */
function outermost(paths: readonly string[]): string[] {
  const distinct = [...new Set(paths)];
  return distinct.filter((path) => !distinct.some((other) => other !== path && isWithin(path, other)));
}
