import { execFile } from "node:child_process";
import { closeSync, realpathSync, type Stats, statSync } from "node:fs";
import { promisify } from "node:util";
import { readText } from "../core/read-files.ts";
import type { LayerShare } from "./layers.ts";
import { openUnnamed, reopenUnnamed } from "./seccomp.ts";

/**
 * Settings that harden git for commands. Git takes any directory with the right files for a repository and runs the programs that
 * its settings name; a command that was approved must not find one that a tool wrote.
 */
export const gitSettings: readonly (readonly [name: string, value: string])[] = [
  ["safe.bareRepository", "explicit"],
  ["core.fsmonitor", "false"],
  ["protocol.ext.allow", "never"],
  ["fetch.recurseSubmodules", "false"],
  ["submodule.recurse", "false"],
];

/**
 * Puts the settings into git's system file, where a command without our variables (`env -i`) finds them, too. The host's own
 * settings stay, before ours; a change of them is noticed by the next command.
 */
export function createGitSystemFile() {
  let path: Promise<string | undefined> | undefined;
  let stored: { version: string; descriptor: number } | undefined;

  function contentOf(file: string, version: string): number {
    if (stored?.version === version) return stored.descriptor;
    if (stored) closeSync(stored.descriptor);
    stored = { version, descriptor: openUnnamed(`${readText(file)}\n\n${settingsText()}`) };
    return stored.descriptor;
  }

  const systemFile = () => {
    path ??= findSystemFile();
    return path;
  };

  return {
    /** Path of the file that the host lacks, so that nothing can be mounted there; undefined if it exists or git is not installed. */
    async missing(): Promise<string | undefined> {
      const named = await systemFile();
      return named === undefined || statOf(named) ? undefined : named;
    },
    async share(): Promise<LayerShare> {
      const named = await systemFile();
      const stats = named === undefined ? undefined : statOf(named);
      if (named === undefined || stats === undefined) return {};
      const file = realpathSync(named);
      const version = `${file} ${stats.ino} ${stats.mtimeMs} ${stats.size}`;
      const descriptor = reopenUnnamed(contentOf(file, version));
      return {
        version,
        files: [{ descriptor, option: "--ro-bind-data", path: file, layer: "readOnly" }],
        release: async () => closeSync(descriptor),
      };
    },
    close(): void {
      if (stored) closeSync(stored.descriptor);
      stored = undefined;
    },
  };
}

/** Returns the path of git's system file: its "editor" prints the path that it gets. Undefined without git. */
async function findSystemFile(): Promise<string | undefined> {
  const args = ["-u", "GIT_CONFIG_SYSTEM", "GIT_EDITOR=echo", "git", "config", "--system", "--edit"];
  try {
    const { stdout } = await promisify(execFile)("env", args, { cwd: "/", timeout: 5_000 });
    const [line = ""] = stdout.split("\n", 1);
    return line.startsWith("/") ? line : undefined;
  } catch {
    return undefined;
  }
}

function statOf(path: string): Stats | undefined {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats?.isFile() ? stats : undefined;
}

/** Writes the settings as a configuration file. */
function settingsText(): string {
  const lines = gitSettings.map(([name, value]) => {
    const [section = "", ...rest] = name.split(".");
    const key = rest.at(-1);
    const subsection = rest.slice(0, -1).join(".");
    return `[${section}${subsection === "" ? "" : ` "${subsection}"`}]\n\t${key} = ${value}\n`;
  });
  return `# Settings of Toolgate's sandbox. They come last, since the last value of a setting counts.\n${lines.join("")}`;
}
