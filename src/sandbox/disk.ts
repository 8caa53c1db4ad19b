import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  type Stats,
} from "node:fs";
import { join } from "node:path";
import { isWithin } from "../core/paths.ts";
import { listNames } from "../core/read-files.ts";
import type { Hidden, SandboxPlace } from "./confinement.ts";
import {
  cacheDirectories,
  createSettingsFinder,
  findToolchains,
  programPaths,
  sharedTemporary,
} from "./session-directories.ts";

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

/** The directories of programs and their settings, which every command sees. */
interface SystemDirectories {
  /** Mounts of these directories, and the links beside them. */
  readonly args: readonly string[];
  /** The mount of `kernelData`, whose directory `args` makes. It brings many mounts, which bubblewrap reads again for each later one. */
  readonly lateArgs: readonly string[];
  readonly paths: readonly string[];
  /** Files and directories in there that only some users may read. */
  readonly secrets: readonly Hidden[];
}

/** Finds the system's directories. Other directories of the disk's root hold data. */
function findSystemDirectories(): SystemDirectories {
  const paths: string[] = [];
  const args: string[] = [];
  for (const name of readdirSync("/")) {
    const path = `/${name}`;
    // A file of another program may vanish after it was listed.
    const stats = lstatSync(path, { throwIfNoEntry: false });
    if (stats?.isSymbolicLink()) args.push("--symlink", readlinkSync(path), path);
    else if (stats?.isDirectory() && systemNames.has(name)) paths.push(path);
  }
  paths.push(...systemData.filter((path) => existsSync(path)));
  const bound = (path: string) => ["--ro-bind", path, path];
  args.push(...paths.flatMap((path) => (path === kernelData ? ["--dir", path] : bound(path))));
  return { args, lateArgs: paths.includes(kernelData) ? bound(kernelData) : [], paths, secrets: findSecrets("/etc") };
}

/** The directory in which the kernel shows its data. */
export const kernelData = "/sys";

const systemNames: ReadonlySet<string> = new Set("bin etc gnu lib lib32 lib64 libx32 nix opt sbin sys usr".split(" "));

/** Data of package managers, certificates and fonts that programs read. */
const systemData = "alternatives apk ca-certificates dpkg pacman rpm"
  .split(" ")
  .map((name) => `/var/lib/${name}`)
  .concat("/var/cache/fontconfig");

/** Finds what this process can read and other users cannot, such as /etc/shadow where it runs as root. */
function findSecrets(directory: string): Hidden[] {
  const found: Hidden[] = [];
  const visit = (at: string) => {
    for (const name of listNames(at)) {
      const path = join(at, name);
      const stats = statsOf(path);
      if (stats === undefined || !(stats.isFile() || stats.isDirectory())) continue;
      if (isSecret(path, stats)) found.push({ path, kind: stats.isDirectory() ? "directory" : "file" });
      else if (stats.isDirectory()) visit(path);
    }
  };
  visit(directory);
  if (found.length <= maxSecrets) return found;
  // Covers the whole of the directories that hold so many.
  const top = new Map(found.map((one) => [one.path.split("/").slice(0, 3).join("/"), one]));
  return [...top].map(([path, one]) => (one.path === path ? one : { path, kind: "directory" }));
}

function statsOf(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

function isSecret(path: string, { mode, size }: Stats): boolean {
  if ((mode & constants.S_IROTH) !== 0 || size === 0) return false;
  try {
    accessSync(path, constants.R_OK);
    return true;
  } catch {
    return false;
  }
}

/** Each costs a mount at the start of each command. */
const maxSecrets = 40;
