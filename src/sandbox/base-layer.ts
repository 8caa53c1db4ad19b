import { lstatSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { isWithin } from "../core/paths.ts";
import type { Hidden, SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { type Disk, kernelData } from "./disk.ts";
import { kernelSwitches, writableSwitch } from "./git-directories.ts";
import type { LayerShare } from "./layers.ts";
import { sharedTemporary } from "./session-directories.ts";

/** Settings of all commands. */
export interface BaseSettings {
  /** Further directories that `workspace-write` leaves writable. */
  readonly writable: readonly string[];
  /** Further paths that commands can read. */
  readonly readable: readonly string[];
  /** Paths that no command can see. */
  readonly hidden: readonly Hidden[];
}

/** Makes the namespaces, and mounts the parts of the disk that the command sees, those in which the profile allows to write as such. */
export function baseLayer(
  confinement: SandboxConfinement,
  place: SandboxPlace,
  settings: BaseSettings,
  disk: Disk,
): LayerShare {
  const mounts = directoryMounts(confinement, place, settings);
  const isWhole = mounts.has("/");
  const covers = temporaryCovers(mounts);
  const programs = isWhole ? [] : disk.programs(place);
  const visible = isWhole ? ["/"] : [...disk.system.paths, ...programs, ...mounts.keys()];
  const isVisible = ({ path }: Hidden) => visible.some((root) => isWithin(path, root));
  const closed = (place.closed ?? []).filter((path) => !isWithin(place.workspace, path));
  const hidden: Hidden[] = [
    ...disk.system.secrets,
    ...settings.hidden.filter(isVisible),
    ...closed.map((path) => ({ path, kind: "directory" as const })),
  ];
  // A mount below it has to come later.
  const isFree = ![...mounts.keys(), ...hidden.map(({ path }) => path)].some((path) => isWithin(path, kernelData));
  const [early, late] = isFree ? [[], disk.system.lateArgs] : [disk.system.lateArgs, []];
  return {
    layers: ["disk", "processes", ...(confinement.network === "none" ? (["network"] as const) : [])],
    args: {
      namespaces: namespaces(confinement),
      base: [
        ...(isWhole ? ["--ro-bind", "/", "/"] : []),
        // bubblewrap reads all mounts again for each one, so those of the devices come before others.
        ...["--dev", "/dev", "--proc", "/proc", ...kernelSwitches.flatMap(readOnly)],
        ...(isWhole ? [] : [...disk.system.args, ...early, ...homeArgs(disk)]),
        ...programs.flatMap((path) => ["--ro-bind-try", path, path]),
      ],
      directories: [
        ...covers.flatMap((path) => ["--tmpfs", path]),
        ...[...mounts].flatMap(([path, isWritable]) =>
          path === "/" ? [] : [isWritable ? "--bind-try" : "--ro-bind-try", path, path],
        ),
      ],
      // A plan of the files covers them, too.
      readOnly: place.files ? [] : serviceFiles.flatMap((name) => readOnly(join(place.workspace, name))),
      hidden: hidden.flatMap(({ path, kind }) =>
        kind === "directory" ? ["--tmpfs", path] : ["--ro-bind", "/dev/null", path],
      ),
      root: isWhole ? [] : ["--remount-ro", "/", ...late],
      seccomp: ["--chdir", place.cwd],
    },
    check: writableSwitch,
    inMemory: ["/dev", ...covers, ...(isWhole || disk.home === undefined ? [] : [disk.home])],
    visible,
    covered: {
      ...{ hidden: [], absent: [] },
      readOnly: place.directories
        .filter(({ path, isWritable }) => !isWritable && path !== "/" && mounts.has(path))
        .map(({ path }) => ({ path, reason: "only reads were allowed there" })),
    },
  };
}

/** Unshares process IDs, so that a command cannot see or kill other processes, and drops the capability to undo mounts. */
function namespaces({ network }: SandboxConfinement): string[] {
  const keepsOwners = process.getuid?.() === 0;
  return [
    ...["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"],
    ...(network === "none" ? ["--unshare-net"] : []),
    ...["--cap-drop", "ALL"],
    // root can still write files of other users where the mounts allow writing.
    ...(keepsOwners ? ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"].flatMap((cap) => ["--cap-add", cap]) : []),
  ];
}

const readOnly = (path: string) => ["--ro-bind-try", path, path];

const homeArgs = ({ home, homeLink }: Disk) => [
  ...(home === undefined ? [] : ["--tmpfs", home]),
  ...(home === undefined || homeLink === undefined ? [] : ["--symlink", home, homeLink]),
];

/** Returns the directories in which work is done, and whether they are writable; what lies below another one comes later. */
function directoryMounts(
  { profile }: SandboxConfinement,
  { workspace, directories }: SandboxPlace,
  { writable, readable }: BaseSettings,
): Map<string, boolean> {
  const canWrite = profile !== "read-only";
  // Those in the place of shared temporary directories belong to the session.
  const own = directories.filter(({ path }) => !isKernelDirectory(path) && !sharedTemporary.has(path));
  const repository = repositoryOfWorktree(workspace);
  const named = new Map<string, boolean>([
    ...[...readable, ...(repository === undefined ? [] : [repository])].map((path) => [path, false] as const),
    ...own.map(({ path, isWritable }) => [path, isWritable && canWrite && path !== "/"] as const),
    ...[...writable, workspace].map((path) => [path, canWrite] as const),
  ]);
  const open = [...named].filter(([, isWritable]) => isWritable).map(([path]) => path);
  return new Map(
    [...named]
      .filter(([path, isWritable]) => isWritable || !open.some((above) => isWithin(path, above)))
      .sort(([one], [other]) => one.length - other.length),
  );
}

/**
 * Returns the directories directly below the temporary ones that hold others which are mounted. Other commands of the session can
 * replace these by links, and bubblewrap would follow them, so each command gets a private one.
 */
function temporaryCovers(mounts: ReadonlyMap<string, boolean>): string[] {
  const names = [...mounts.keys()].flatMap((path) =>
    [...sharedTemporary].flatMap((temporary) => {
      const [name, ...rest] = isWithin(path, temporary) ? relative(temporary, path).split("/") : [];
      return name === undefined || rest.length === 0 ? [] : [join(temporary, name)];
    }),
  );
  return [...new Set(names)].filter((path) => !mounts.has(path));
}

/** Names of configuration and code of the service in a workspace. */
const serviceFiles = [".opencode", "toolgate.toml"];

/** Checks for directories that the sandbox mounts itself. */
export const isKernelDirectory = (path: string) => /^\/(dev|proc)(\/|$)/.test(path);

/**
 * Returns the repository of a directory that is a worktree of git, by its canonical path; undefined for other directories. The
 * repository has to name the worktree: a `.git` that a command wrote could name any directory.
 */
function repositoryOfWorktree(directory: string): string | undefined {
  const link = join(directory, ".git");
  if (!lstatSync(link, { throwIfNoEntry: false })?.isFile()) return undefined;
  try {
    const [, named = ""] = /^gitdir: (.+)/.exec(readFileSync(link, "utf8")) ?? [];
    const own = realpathSync(resolve(directory, named));
    const back = readFileSync(join(own, "gitdir"), "utf8").trim();
    if (realpathSync(dirname(back)) !== directory) return undefined;
    return realpathSync(resolve(own, readFileSync(join(own, "commondir"), "utf8").trim()));
  } catch {
    return undefined;
  }
}
