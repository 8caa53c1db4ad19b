import { realpath } from "node:fs/promises";
import { join } from "node:path";
import { WorkerFileKind } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { createFileStamp } from "./file-stamp.ts";
import type { Problem } from "./problem.ts";
import { createProcessSource, type ProcessParts } from "./process-source.ts";
import { readSources, type SourceFile, type Sources } from "./sources.ts";
import type { ToolSource } from "./tool-source.ts";
import type { Trust } from "./trust.ts";

/** A directory with tool files in `tool` and `tools`, whose tools serve in one workspace root. */
export interface ToolDirectory {
  readonly path: string;
  readonly workspace: { readonly name: string; readonly directory: string };
  /** True if it belongs to the workspace: its code is loaded only as far as it is trusted. */
  readonly isOwn: boolean;
}

/** Creates the source of a tool directory; nothing is loaded before its first refresh. */
export function directorySource(
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
export async function hashesByRealPath(
  directory: string,
  files: readonly SourceFile[],
): Promise<ReadonlyMap<string, string>> {
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
