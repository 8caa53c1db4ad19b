import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { createFileStamp } from "./file-stamp.ts";
import type { ToolSource } from "./tool-source.ts";
import type { Trust } from "./trust.ts";

/** The handling of plugins that a trusted workspace brings: without them calls are denied, or go on, or they are ignored. */
export type WorkspacePluginMode = "require" | "optional" | "off";

/**
 * Creates the source of a workspace's own plugins, which are found but not loaded. Calls in a trusted workspace are denied, since
 * a plugin may guard them.
 */
export function workspacePluginSource(
  workspace: { name: string; directory: string },
  mode: WorkspacePluginMode,
  trust: Trust,
): ToolSource {
  const path = join(workspace.directory, ".opencode");
  const directories = ["plugin", "plugins"].map((name) => join(path, name));
  const stamp = createFileStamp();
  let guardProblem: string | undefined;
  const source: ToolSource = {
    path,
    workspace: workspace.name,
    problems: [],
    guardProblem: () => guardProblem,
    isCurrent: () => mode === "off" || stamp.isCurrent(),
    async refresh() {
      if (mode === "off") return;
      stamp.take([...directories, trust.fileOf(workspace.directory)], Date.now());
      const files = (await Promise.all(directories.map(pluginsIn))).flat();
      const isTrusted = (await trust.get(workspace.directory)) !== undefined;
      guardProblem = files.length > 0 && isTrusted && mode === "require" ? denial(workspace.name, files) : undefined;
      const reason = guardProblem ?? notLoaded;
      source.problems = files.map((file) => ({ path: file, line: 0, reason }));
    },
  };
  return source;
}

const notLoaded = "plugins of a workspace are not loaded; name it under plugin in toolgate.toml, outside the workspace";

function denial(workspace: string, files: readonly string[]): string {
  return [
    `the workspace "${workspace}" has plugins that are not loaded and may guard calls: ${files.join(", ")}.`,
    "Move each file next to toolgate.toml and name it there under plugin,",
    `or write in toolgate.toml: [workspace_plugins] ${workspace} = "optional" (calls run without them), or "off" (they are ignored)`,
  ].join(" ");
}

async function pluginsIn(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch(() => []);
  return names
    .filter((name) => /\.[cm]?[jt]s$/.test(name) && !name.endsWith(".d.ts"))
    .sort()
    .map((name) => join(directory, name));
}
