import { setTimeout as delay } from "node:timers/promises";
import type { FileRules } from "../policy/file-rules.ts";
import type { Confined, Covered } from "./layers.ts";
import type { PlaceNetwork } from "./network/session-networks.ts";
import type { SystemCallSwitches } from "./seccomp.ts";

/** Scope of the changes that commands can make: everything that the service can, the workspace and temporary files, or nothing that lasts. */
export type SandboxProfile = "off" | "workspace-write" | "read-only";

/** Hosts that commands reach: those that rules or a person allow, through the proxy; none; or all, without any check. */
export type NetworkAccess = "proxy" | "none" | "open";

/** Confinement of commands. */
export interface SandboxConfinement {
  readonly profile: SandboxProfile;
  readonly network: NetworkAccess;
}

/** Confinement of an agent's commands as it is configured. */
export interface AgentConfinement extends SandboxConfinement, Partial<SystemCallSwitches> {}

/** Agent and directories of a command. */
export interface SandboxPlace {
  agent: string;
  /** The canonical working directory. */
  cwd: string;
  /** The canonical directory of the workspace. */
  workspace: string;
  /** Directories outside the workspace that the call may touch. */
  directories: readonly PlaceDirectory[];
  /** Canonical directories below these that rules close. */
  closed?: readonly string[];
  /** Directories of programs that run there and are not found by the search path. */
  programs?: readonly string[];
  /** The rules that hold for the files inside; absent: only what the profile says. */
  files?: PlaceFiles;
  /** The root of its session tree, whose commands share temporary files; absent: they are empty at first. */
  session?: string;
  /** True for a program that only reads: it changes nothing that lasts and has no network, whatever its agent may. */
  readsOnly?: boolean;
  /** True for a program that gets two private pipes, as descriptors 3 and 4. */
  hasPipes?: boolean;
  /** True if its mounts may be there already, in a sandbox that waits. */
  isMounted?: boolean;
  /** Its network in the mode `proxy`; absent: one in which it reaches nothing. */
  network?: PlaceNetwork;
}

/** A directory outside the workspace. */
export interface PlaceDirectory {
  /** Its canonical path. */
  readonly path: string;
  /** True if the command may also change what is below. */
  readonly isWritable: boolean;
  /** True if it holds the code of a program that nobody is asked for: rules for every path do not hide it, those that name a path do. */
  readonly isCode?: boolean;
}

/** A file or directory that is hidden; it must exist. */
export interface Hidden {
  path: string;
  kind: "file" | "directory";
}

/** Rules about files, and what one command was allowed. */
export interface PlaceFiles {
  rules: FileRules;
  /** Canonical paths that the command was allowed to read, and to edit, whatever rules say. */
  read: readonly string[];
  edit: readonly string[];
  /** Canonical paths of files and directories that it may edit with all that is below. */
  editTrees?: readonly string[];
  /** True if the command may read, or edit, files that are too many to hide or to protect one by one. */
  mayRead?: boolean;
  mayEdit?: boolean;
}

/** A check of what a process that outlives single calls is confined to. */
interface CoverageWatch {
  confined: Pick<Confined, "uncovered">;
  /** Returns the rules that hold now. */
  rules(): Promise<FileRules>;
  /** Called with paths that rules restrict now and the process can reach; once for each path. */
  onUncovered(paths: readonly Covered[]): void;
  /** Called if a check fails, once. */
  onProblem(error: unknown): void;
  everyMs?: number;
}

/**
 * Checks again and again, until the signal is aborted, if rules or files have changed so that the mounts of a running process do
 * not suffice any more. Mounts cannot be added to it, so its owner restarts it, or reports that it has to be started again.
 */
export async function watchCoverage(
  { confined, rules, onUncovered, onProblem, everyMs = defaultPauseMs }: CoverageWatch,
  signal: AbortSignal,
): Promise<void> {
  const known = new Set<string>();
  let hasFailed = false;
  while (!signal.aborted) {
    await delay(everyMs, undefined, { signal, ref: false }).catch(() => undefined);
    if (signal.aborted) return;
    try {
      const found = (await confined.uncovered(await rules())).filter(({ path }) => !known.has(path));
      for (const { path } of found) known.add(path);
      if (found.length > 0 && !signal.aborted) onUncovered(found);
    } catch (error) {
      if (!hasFailed && !signal.aborted) onProblem(error);
      hasFailed = true;
    }
  }
}

const defaultPauseMs = 15_000;
