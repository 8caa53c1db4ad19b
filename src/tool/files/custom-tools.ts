import { loadProblem, type Problem } from "./modules.ts";
import { type ConfiguredPlugin, type PluginParts, pluginSource } from "./plugin-file.ts";
import { type DirectoryParts, directorySource, type ToolDirectory } from "./tool-directory.ts";
import type { ToolSource } from "./tool-source.ts";
import { type WorkspacePluginMode, workspacePluginSource } from "./workspace-plugins.ts";
import { workspacePolicySource } from "./workspace-policy.ts";

/** Tools and plugins from files. */
export interface CustomTools {
  /**
   * Loads what has changed, for one workspace root or for all. Files that cannot be loaded become problems; it never throws. It
   * resolves at once if nothing has changed.
   */
  refresh(workspace?: string): Promise<void>;
  /** Files that are not loaded, or policy files that are not trusted as they are, of those that serve in a workspace root. */
  problems(workspace: string): Problem[];
  /** The reason to deny all calls in a workspace root: a plugin that may guard them is not loaded. */
  guardProblem(workspace: string): string | undefined;
  /** The reason why a plugin of the configuration that is not optional is not loaded. */
  pluginProblem(): string | undefined;
  close(): void;
}

/** Creates the tools of directories and plugins; nothing is loaded before the first refresh. Each new problem is reported once. */
export function createCustomTools({
  directories,
  plugins,
  workspacePlugins = () => "require",
  ...parts
}: {
  directories: readonly ToolDirectory[];
  plugins: readonly ConfiguredPlugin[];
  /** Returns the handling of the plugins that a workspace brings. */
  workspacePlugins?: (workspace: string) => WorkspacePluginMode;
} & DirectoryParts &
  PluginParts): CustomTools {
  const sources = [
    ...directories.map((directory) => directorySource(directory, parts)),
    ...directories.flatMap(({ workspace }) =>
      workspace
        ? [
            workspacePluginSource(workspace, workspacePlugins(workspace.name), parts.trust),
            workspacePolicySource(workspace, parts.trust),
          ]
        : [],
    ),
    ...plugins.map((plugin) => pluginSource(plugin, parts)),
  ];
  const sourcesOf = (workspace: string) => sources.filter((source) => (source.workspace ?? workspace) === workspace);
  let last: Promise<void> = Promise.resolve();
  let running = 0;
  return {
    async refresh(workspace) {
      const serving = workspace === undefined ? sources : sourcesOf(workspace);
      if (running === 0 && serving.every((source) => source.isCurrent())) return;
      running += 1;
      // One at a time: a refresh that resolves has seen the files as they were when it was called.
      last = last.then(() => refreshAll(serving, parts.report)).finally(() => (running -= 1));
      return await last;
    },
    problems: (workspace) => sourcesOf(workspace).flatMap(({ problems }) => problems),
    guardProblem: (workspace) => firstProblem(sourcesOf(workspace)),
    pluginProblem: () => firstProblem(sources.filter(({ workspace }) => workspace === undefined)),
    close: parts.modules.close,
  };
}

function firstProblem(sources: readonly ToolSource[]): string | undefined {
  return sources.map((source) => source.guardProblem()).find((problem) => problem !== undefined);
}

async function refreshAll(sources: readonly ToolSource[], report: (problem: Problem) => void): Promise<void> {
  for (const source of sources) {
    if (source.isCurrent()) continue;
    const before = new Set(source.problems.map(textOf));
    await source.refresh().catch(async (error: unknown) => {
      source.problems = [await loadProblem(source.path, error)];
    });
    for (const problem of source.problems) if (!before.has(textOf(problem))) report(problem);
  }
}

const textOf = ({ path, line, reason }: Problem) => `${path}:${line} ${reason}`;
