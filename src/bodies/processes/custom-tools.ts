import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { type Source, SourceSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import type { PathStamps } from "./file-stamp.ts";
import { type ConfiguredPlugin, pluginSource } from "./plugin-file.ts";
import type { Problem } from "./problem.ts";
import type { ProcessParts } from "./process-source.ts";
import { directorySource } from "./tool-directory.ts";
import type { ToolSource } from "./tool-source.ts";
import type { Trust } from "./trust.ts";
import { type WorkspacePluginMode, workspacePluginSource } from "./workspace-plugins.ts";
import { workspacePolicySource } from "./workspace-policy.ts";

/** Tools and plugins from files, which processes run. */
export interface CustomTools {
  /**
   * Loads what has changed for one workspace root, or what was loaded and has changed in all. Files that cannot be loaded become
   * problems; it never throws. It resolves at once if nothing has changed.
   */
  refresh(workspace: string): Promise<void>;
  /** Files that are not loaded, or policy files that are not trusted as they are, of those that serve in a workspace root. */
  problems(workspace: string): Problem[];
  /** The reason to deny all calls in a workspace root: a plugin that may guard them is not loaded. */
  guardProblem(workspace: string): string | undefined;
  /** Loads the plugins of the configuration in one workspace root; returns why one that is not optional is not loaded. */
  checkPlugins(workspace: string): Promise<string | undefined>;
  /** Describes the processes. */
  list(): Promise<Source[]>;
  close(): Promise<void>;
}

/** The files whose tools and plugins serve. */
export interface CustomToolFiles {
  /** Root name → canonical directory. */
  workspaces: ReadonlyMap<string, string>;
  /** The directory of the user's own tools, which serve in all workspaces. */
  userDirectory: string | undefined;
  plugins: readonly ConfiguredPlugin[];
  /** Returns the handling of the plugins that a workspace brings. */
  workspacePlugins(workspace: string): WorkspacePluginMode;
}

/** The sources of one workspace root. */
interface WorkspaceSources {
  readonly sources: readonly ToolSource[];
  /** The last refresh: one at a time, so that one that resolves has seen the files as they were when it was called. */
  last: Promise<void>;
  running: number;
}

/** Creates the tools of directories and plugins; nothing is loaded before the first refresh. Each new problem is reported once. */
export function createCustomTools(
  files: CustomToolFiles,
  { report, ...parts }: ProcessParts & { trust: Trust; report(problem: Problem): void },
): CustomTools {
  const roots = new Map(
    [...files.workspaces].map(([name, directory]) => [
      name,
      {
        sources: sourcesOf(files, { name, directory }, parts),
        last: Promise.resolve(),
        running: 0,
      } as WorkspaceSources,
    ]),
  );
  const all = () => [...roots.values()].flatMap(({ sources }) => sources);
  const reported = new Set<string>();
  const sourcesIn = (workspace: string) => roots.get(workspace)?.sources ?? [];
  const reportNew = (sources: readonly ToolSource[]) => {
    for (const problem of sources.flatMap(({ problems }) => problems())) {
      const text = `${problem.path}:${problem.line} ${problem.reason}`;
      if (!reported.has(text)) report(problem);
      reported.add(text);
    }
  };
  return {
    async refresh(workspace) {
      const root = roots.get(workspace);
      const seen: PathStamps = new Map();
      if (root === undefined || (root.running === 0 && root.sources.every((source) => source.isCurrent(seen)))) return;
      root.running += 1;
      root.last = root.last.then(() => refreshAll(root.sources)).finally(() => (root.running -= 1));
      await root.last;
      reportNew(root.sources);
    },
    problems: (workspace) => sourcesIn(workspace).flatMap(({ problems }) => problems()),
    guardProblem: (workspace) => firstGuardProblem(sourcesIn(workspace)),
    async checkPlugins(workspace) {
      const plugins = sourcesIn(workspace).filter(({ isConfigured }) => isConfigured);
      await refreshAll(plugins);
      reportNew(plugins);
      return firstGuardProblem(plugins);
    },
    async list() {
      const described = await Promise.all(all().map((source) => source.describe()));
      const sources = described.flatMap((source) => (source ? create(SourceSchema, source) : []));
      const placeOf = ({ workspace, name }: Source) => `${workspace}\0${name}`;
      return sources.sort((one, other) => (placeOf(one) < placeOf(other) ? -1 : 1));
    },
    close: async () => void (await Promise.all(all().map((source) => source.close()))),
  };
}

/** Makes the sources of a workspace root, by rising rank: what the workspace brings takes the place of the user's own tools. */
function sourcesOf(
  { userDirectory, plugins, workspacePlugins }: CustomToolFiles,
  workspace: { name: string; directory: string },
  parts: ProcessParts & { trust: Trust },
): ToolSource[] {
  const user = userDirectory === undefined ? [] : [{ path: userDirectory, workspace, isOwn: false }];
  const own = { path: join(workspace.directory, ".opencode"), workspace, isOwn: true };
  const last = plugins.length + 1;
  return [
    ...user.map((directory) => directorySource(directory, 0, parts)),
    ...plugins.map((plugin, index) => pluginSource(plugin, workspace, index + 1, parts)),
    directorySource(own, last, parts),
    workspacePluginSource(workspace, workspacePlugins(workspace.name), last + 1, parts),
    workspacePolicySource(workspace, parts.trust),
  ];
}

function firstGuardProblem(sources: readonly ToolSource[]): string | undefined {
  return sources.map((source) => source.guardProblem()).find((problem) => problem !== undefined);
}

/** Refreshes the sources that have changed, each in its own process and all at the same time. */
async function refreshAll(sources: readonly ToolSource[]): Promise<void> {
  await Promise.all(sources.map((source) => (source.isCurrent() ? undefined : source.refresh())));
}
