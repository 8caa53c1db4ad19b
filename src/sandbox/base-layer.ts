import { join } from "node:path";
import type { SandboxConfinement, SandboxPlace } from "./confinement.ts";
import type { LayerShare } from "./layers.ts";
import { sharedTemporary } from "./session-directories.ts";

/** A file or directory that is hidden; it must exist. */
export interface Hidden {
  path: string;
  kind: "file" | "directory";
}

/** Settings of all commands: further directories that `workspace-write` leaves writable, and paths that no command can see. */
export interface BaseSettings {
  readonly writable: readonly string[];
  readonly hidden: readonly Hidden[];
}

/** Makes the namespaces, and mounts the disk read-only with the directories in which the profile allows to write. */
export function baseLayer(
  confinement: SandboxConfinement,
  place: SandboxPlace,
  { writable, hidden }: BaseSettings,
): LayerShare {
  return {
    args: {
      namespaces: namespaces(confinement),
      base: ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"],
      directories: directories(confinement, place, writable),
      // A plan of the files covers them, too.
      readOnly: place.files ? [] : serviceFiles.flatMap((name) => readOnly(join(place.workspace, name))),
      hidden: hidden.flatMap(({ path, kind }) =>
        kind === "directory" ? ["--tmpfs", path] : ["--ro-bind", "/dev/null", path],
      ),
      seccomp: ["--chdir", place.cwd],
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

function directories(
  { profile }: SandboxConfinement,
  { workspace, directories }: SandboxPlace,
  writable: readonly string[],
): string[] {
  // Those in the place of shared temporary directories belong to the session.
  const own = directories.filter((directory) => !isKernelDirectory(directory) && !sharedTemporary.has(directory));
  const bind = profile === "read-only" ? "--ro-bind-try" : "--bind-try";
  const open = [...(profile === "read-only" ? [] : writable), workspace, ...own];
  return open.flatMap((directory) => [bind, directory, directory]);
}

/** Names of configuration and code of the service in a workspace. */
const serviceFiles = [".opencode", "toolgate.toml"];

/** Checks for the root of the disk, and directories that the sandbox mounts itself. */
export const isKernelDirectory = (path: string) => /^\/$|^\/(dev|proc)(\/|$)/.test(path);
