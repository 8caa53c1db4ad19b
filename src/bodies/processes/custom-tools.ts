import { readdir, realpath } from "node:fs/promises";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { type Source, SourceSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { WorkerFileKind } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { Problem } from "./problem.ts";
import { createProcessSource, type ProcessParts } from "./process-source.ts";
import { readSources, type SourceFile, type Sources, type ToolSource, workspacePolicySource } from "./sources.ts";
import { createFileStamp, hashFiles, type PathStamps, type Trust } from "./trust.ts";

/** Tools and plugins from files, which processes run. */
export type CustomTools = ReturnType<typeof createCustomTools>;

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
) {
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
  /** Stamps of the paths that were checked in this turn of the event loop: concurrent calls check a path once. */
  const seen: PathStamps = new Map();
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
    /**
     * Loads what has changed for one workspace root, or what was loaded and has changed in all. Files that cannot be loaded become
     * problems; it never throws. It resolves at once if nothing has changed.
     */
    async refresh(workspace: string): Promise<void> {
      const root = roots.get(workspace);
      if (root === undefined) return;
      if (seen.size === 0) setImmediate(() => seen.clear());
      if (root.running === 0 && root.sources.every((source) => source.isCurrent(seen))) return;
      root.running += 1;
      root.last = root.last.then(() => refreshAll(root.sources)).finally(() => (root.running -= 1));
      await root.last;
      reportNew(root.sources);
    },
    /** Files that are not loaded, or policy files that are not trusted as they are, of those that serve in a workspace root. */
    problems: (workspace: string): Problem[] => sourcesIn(workspace).flatMap(({ problems }) => problems()),
    /** The reason to deny all calls in a workspace root: a plugin that may guard them is not loaded. */
    guardProblem: (workspace: string): string | undefined => firstGuardProblem(sourcesIn(workspace)),
    /** Loads the plugins of the configuration in one workspace root; returns why one that is not optional is not loaded. */
    async checkPlugins(workspace: string): Promise<string | undefined> {
      const plugins = sourcesIn(workspace).filter(({ isConfigured }) => isConfigured);
      await refreshAll(plugins);
      reportNew(plugins);
      return firstGuardProblem(plugins);
    },
    /** Describes the processes. */
    async list(): Promise<Source[]> {
      const described = await Promise.all(all().map((source) => source.describe()));
      const sources = described.flatMap((source) => (source ? create(SourceSchema, source) : []));
      const placeOf = ({ workspace, name }: Source) => `${workspace}\0${name}`;
      return sources.sort((one, other) => (placeOf(one) < placeOf(other) ? -1 : 1));
    },
    close: async (): Promise<void> => void (await Promise.all(all().map((source) => source.close()))),
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

/** A plugin that the configuration names. */
interface ConfiguredPlugin {
  readonly path: string;
  /** Calls run without it if it cannot be loaded. */
  readonly optional: boolean;
}

/** Creates the source of a plugin file in one workspace; nothing is loaded before its first refresh. */
function pluginSource(
  { path, optional }: ConfiguredPlugin,
  workspace: { readonly name: string; readonly directory: string },
  rank: number,
  parts: ProcessParts,
): ToolSource {
  const stamp = createFileStamp();
  const loaded = createProcessSource({ path, workspace }, { kind: WorkerFileKind.PLUGIN, rank }, parts);
  let wasTried = false;
  return {
    workspace: workspace.name,
    isConfigured: true,
    problems: loaded.problems,
    guardProblem() {
      const problem = wasTried ? loaded.missing() : { path, line: 0, reason: "it was not loaded yet" };
      return optional || !problem ? undefined : denial(path, problem);
    },
    isCurrent: (seen) => stamp.isCurrent(seen) && !loaded.isDue(),
    async refresh() {
      const readSince = Date.now();
      stamp.take([path, ...loaded.loadedFiles()], readSince);
      await loaded.load({ files: [path], hashes: await hashFiles([path]) });
      wasTried = true;
      // Its imports are known only now.
      stamp.take([path, ...loaded.loadedFiles()], readSince);
    },
    describe: loaded.describe,
    close: loaded.close,
  };
}

function denial(path: string, { line, reason }: Problem): string {
  return `the plugin ${path}${line > 0 ? `, line ${line},` : ""} is not loaded and may guard calls: ${reason}. Correct it, take it out of plugin in toolgate.toml, or write { path = ${JSON.stringify(path)}, optional = true } there`;
}

/** The handling of plugins that a trusted workspace brings: if one is not loaded, calls are denied or go on; or all are ignored. */
type WorkspacePluginMode = "require" | "optional" | "off";

/**
 * Creates the source of a workspace's own plugins, which are loaded as far as they are trusted. If one of a trusted workspace is
 * not loaded, calls there are denied, since it may guard them.
 */
function workspacePluginSource(
  workspace: { readonly name: string; readonly directory: string },
  mode: WorkspacePluginMode,
  rank: number,
  { trust, ...parts }: ProcessParts & { trust: Trust },
): ToolSource {
  const path = join(workspace.directory, ".opencode");
  const directories = pluginDirectories(path);
  const stamp = createFileStamp();
  const isOptional = mode === "optional";
  const loaded = createProcessSource({ path, workspace }, { kind: WorkerFileKind.PLUGIN, rank, isOptional }, parts);
  let problems: Problem[] = [];
  let isGuardMissing = false;
  let hasFailed = false;

  async function refresh(): Promise<void> {
    const readSince = Date.now();
    const files = await pluginsOf(path);
    const sources = files.length === 0 ? undefined : await readSources(path, [path]);
    const record = trust.fileOf(workspace.directory);
    const watched = () =>
      stamp.take([...directories, record, ...(sources?.watched ?? []), ...loaded.loadedFiles()], readSince);
    watched();
    const trusted = sources && (await trust.get(workspace.directory));
    problems = [];
    isGuardMissing = false;
    if (sources === undefined || trusted === undefined) {
      problems = files.map((file) => ({ path: file, line: 0, reason: notTrusted(workspace.directory) }));
      return loaded.unload();
    }
    if (trusted !== sources.digest) {
      problems = files.map((file) => ({ path: file, line: 0, reason: changed(workspace.directory) }));
      isGuardMissing = true;
      return loaded.hold();
    }
    await loaded.load({
      files,
      hashes: new Map(sources.files.map((file) => [join(path, file.path), file.sha256])),
      expected: await hashesByRealPath(path, sources.files),
    });
    // Imports are known only now.
    watched();
  }

  return {
    workspace: workspace.name,
    isConfigured: false,
    problems: () => [...problems, ...loaded.problems()],
    guardProblem() {
      const problem = isGuardMissing ? problems[0] : loaded.missing();
      return mode === "require" && problem ? pluginDenial(workspace.name, problem) : undefined;
    },
    isCurrent: (seen) => mode === "off" || (!hasFailed && stamp.isCurrent(seen) && !loaded.isDue()),
    async refresh() {
      if (mode === "off") return;
      hasFailed = false;
      await refresh().catch((error: unknown) => {
        problems = [{ path, line: 0, reason: error instanceof Error ? error.message : String(error) }];
        isGuardMissing = true;
        hasFailed = true;
      });
    },
    describe: loaded.describe,
    close: loaded.close,
  };
}

const notTrusted = (directory: string) =>
  `plugins of a workspace that is not trusted are not loaded; review the code in .opencode, then run: toolgate trust ${directory}`;

const changed = (directory: string) =>
  `the code in .opencode has changed since it was trusted, so this plugin is not loaded as it is; review it, then run: toolgate trust ${directory}`;

function pluginDenial(workspace: string, { path, line, reason }: Problem): string {
  return [
    `the workspace "${workspace}" has the plugin ${path}${line > 0 ? `, line ${line},` : ""} that is not loaded and may guard calls: ${reason}.`,
    `Correct it, or write in toolgate.toml: [workspace_plugins] ${workspace} = "optional" (calls run without it), or "off" (plugins are ignored)`,
  ].join(" ");
}

/** Lists the plugin files in a workspace's `.opencode`. */
export async function pluginsOf(codeDirectory: string): Promise<string[]> {
  return (await Promise.all(pluginDirectories(codeDirectory).map(pluginsIn))).flat();
}

const pluginDirectories = (codeDirectory: string) => ["plugin", "plugins"].map((name) => join(codeDirectory, name));

async function pluginsIn(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch(() => []);
  return names
    .filter((name) => /\.[cm]?[jt]s$/.test(name) && !name.endsWith(".d.ts"))
    .sort()
    .map((name) => join(directory, name));
}

/** A directory with tool files in `tool` and `tools`, whose tools serve in one workspace root. */
interface ToolDirectory {
  readonly path: string;
  readonly workspace: { readonly name: string; readonly directory: string };
  /** True if it belongs to the workspace: its code is loaded only as far as it is trusted. */
  readonly isOwn: boolean;
}

/** Creates the source of a tool directory; nothing is loaded before its first refresh. */
function directorySource(
  { path, workspace, isOwn }: ToolDirectory,
  rank: number,
  { trust, ...parts }: ProcessParts & { trust: Trust },
): ToolSource {
  const stamp = createFileStamp();
  const loaded = createProcessSource({ path, workspace }, { kind: WorkerFileKind.TOOLS, rank }, parts);
  // The configuration's directory also holds files that are no code of tools; in .opencode tools may import any code.
  const codeDirectories = isOwn ? [path] : ["tool", "tools"].map((name) => join(path, name));
  let problems: Problem[] = [];

  async function refresh(): Promise<void> {
    const readSince = Date.now();
    const sources = await readSources(path, codeDirectories);
    const record = isOwn ? [trust.fileOf(workspace.directory)] : [];
    const watched = () => stamp.take([...sources.watched, ...record, ...loaded.loadedFiles()], readSince);
    watched();
    const trusted = isOwn ? await trust.get(workspace.directory) : undefined;
    const untrusted = isOwn ? trustProblem(workspace.directory, sources, trusted) : undefined;
    if (untrusted !== undefined) {
      problems = [{ path, line: 0, reason: untrusted }];
      if (trusted === undefined) loaded.unload();
      else loaded.hold();
      return;
    }
    problems = [];
    if (sources.entries.length === 0) return loaded.unload();
    await loaded.load({
      files: sources.entries.map((file) => join(path, file.path)),
      hashes: new Map(sources.files.map((file) => [join(path, file.path), file.sha256])),
      // Files may change between this check and the import, and tools may import more later: each load is checked again.
      ...(isOwn && { expected: await hashesByRealPath(path, sources.files) }),
    });
    // Imports are known only now.
    watched();
  }

  return {
    workspace: workspace.name,
    isConfigured: false,
    problems: () => [...problems, ...loaded.problems()],
    guardProblem: () => undefined,
    isCurrent: (seen) => stamp.isCurrent(seen) && !loaded.isDue(),
    refresh: () =>
      refresh().catch((error: unknown) => {
        problems = [{ path, line: 0, reason: error instanceof Error ? error.message : String(error) }];
      }),
    describe: loaded.describe,
    close: loaded.close,
  };
}

/** Maps files to their hashes; the loader knows a file by the path behind links. */
async function hashesByRealPath(directory: string, files: readonly SourceFile[]): Promise<ReadonlyMap<string, string>> {
  const hashes = files.map(async ({ path, sha256 }) => {
    const file = join(directory, path);
    return [await realpath(file).catch(() => file), sha256] as const;
  });
  return new Map(await Promise.all(hashes));
}

/** Explains why code of a workspace is not loaded; undefined if it may be. */
function trustProblem(
  workspace: string,
  { entries, digest }: Sources,
  trusted: string | undefined,
): string | undefined {
  if (entries.length === 0 || trusted === digest) return undefined;
  if (trusted === undefined) {
    return `this workspace brings ${entries.length} tool file(s), which are not loaded: their code would run in a process of the service. Review it, then run: toolgate trust ${workspace}`;
  }
  return `the code of this workspace's tools has changed since it was trusted: the source loaded before serves as long as its process runs, and nothing new is loaded. Review it, then run: toolgate trust ${workspace}`;
}
