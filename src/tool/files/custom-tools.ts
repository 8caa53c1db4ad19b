import { loadProblem, type Problem } from "./modules.ts";
import { type PluginParts, pluginSource } from "./plugin-file.ts";
import { type DirectoryParts, directorySource, type ToolDirectory } from "./tool-directory.ts";
import type { ToolSource } from "./tool-source.ts";

/** Tools and plugins from files. */
export interface CustomTools {
  /** Loads what has changed since the last refresh. Files that cannot be loaded become problems; it never throws. */
  refresh(): Promise<void>;
  /** Files that could not be loaded, of those that serve in a workspace root. */
  problems(workspace: string): Problem[];
  /** Plugins that could not be loaded: without them calls would run unguarded. */
  pluginProblems(): Problem[];
  close(): void;
}

/** Creates the tools of directories and plugins; nothing is loaded before the first refresh. Each new problem is reported once. */
export function createCustomTools({
  directories,
  plugins,
  ...parts
}: {
  directories: readonly ToolDirectory[];
  /** Paths of plugin files. */
  plugins: readonly string[];
} & DirectoryParts &
  PluginParts): CustomTools {
  const sources = [
    ...directories.map((directory) => directorySource(directory, parts)),
    ...plugins.map((path) => pluginSource(path, parts)),
  ];
  let last: Promise<void> = Promise.resolve();
  return {
    refresh() {
      // One at a time: a refresh that resolves has seen the files as they were when it was called.
      last = last.then(() => refreshAll(sources, parts.report));
      return last;
    },
    problems: (workspace) =>
      sources.filter((source) => (source.workspace ?? workspace) === workspace).flatMap(({ problems }) => problems),
    pluginProblems: () => sources.filter(({ isPlugin }) => isPlugin).flatMap(({ problems }) => problems),
    close: parts.modules.close,
  };
}

async function refreshAll(sources: readonly ToolSource[], report: (problem: Problem) => void): Promise<void> {
  for (const source of sources) {
    const before = new Set(source.problems.map(textOf));
    await source.refresh().catch(async (error: unknown) => {
      source.problems = [await loadProblem(source.path, error)];
    });
    for (const problem of source.problems) if (!before.has(textOf(problem))) report(problem);
  }
}

const textOf = ({ path, line, reason }: Problem) => `${path}:${line} ${reason}`;
