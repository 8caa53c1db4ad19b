import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { WorkerFileKind } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { createFileStamp } from "./file-stamp.ts";
import type { Problem } from "./problem.ts";
import { createProcessSource, type ProcessParts } from "./process-source.ts";
import { readSources } from "./sources.ts";
import { hashesByRealPath } from "./tool-directory.ts";
import type { ToolSource } from "./tool-source.ts";
import type { Trust } from "./trust.ts";

/** The handling of plugins that a trusted workspace brings: if one is not loaded, calls are denied or go on; or all are ignored. */
export type WorkspacePluginMode = "require" | "optional" | "off";

/**
 * Creates the source of a workspace's own plugins, which are loaded as far as they are trusted. If one of a trusted workspace is
 * not loaded, calls there are denied, since it may guard them.
 */
export function workspacePluginSource(
  workspace: { readonly name: string; readonly directory: string },
  mode: WorkspacePluginMode,
  rank: number,
  { trust, ...parts }: ProcessParts & { trust: Trust },
): ToolSource {
  const path = join(workspace.directory, ".opencode");
  const directories = ["plugin", "plugins"].map((name) => join(path, name));
  const stamp = createFileStamp();
  const loaded = createProcessSource({ path, workspace }, { kind: WorkerFileKind.PLUGIN, rank }, parts);
  let problems: Problem[] = [];
  let isGuardMissing = false;

  async function refresh(): Promise<void> {
    const readSince = Date.now();
    const files = (await Promise.all(directories.map(pluginsIn))).flat();
    const sources = files.length === 0 ? undefined : await readSources(path, [path]);
    const record = trust.fileOf(workspace.directory);
    const watched = () =>
      stamp.take([...directories, record, ...(sources?.watched ?? []), ...loaded.loadedFiles()], readSince);
    watched();
    const trusted = await trust.get(workspace.directory);
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
      return mode === "require" && problem ? denial(workspace.name, problem) : undefined;
    },
    isCurrent: (seen) => mode === "off" || (stamp.isCurrent(seen) && !loaded.isDue()),
    async refresh() {
      if (mode === "off") return;
      await refresh().catch((error: unknown) => {
        problems = [{ path, line: 0, reason: error instanceof Error ? error.message : String(error) }];
        isGuardMissing = true;
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

function denial(workspace: string, { path, line, reason }: Problem): string {
  return [
    `the workspace "${workspace}" has the plugin ${path}${line > 0 ? `, line ${line},` : ""} that is not loaded and may guard calls: ${reason}.`,
    `Correct it, or write in toolgate.toml: [workspace_plugins] ${workspace} = "optional" (calls run without it), or "off" (plugins are ignored)`,
  ].join(" ");
}

async function pluginsIn(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch(() => []);
  return names
    .filter((name) => /\.[cm]?[jt]s$/.test(name) && !name.endsWith(".d.ts"))
    .sort()
    .map((name) => join(directory, name));
}
