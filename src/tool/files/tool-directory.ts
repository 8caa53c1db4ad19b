import { realpath } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import { byName, type Registry } from "../registry.ts";
import type { Tool } from "../tool.ts";
import { toolOf } from "./foreign.ts";
import { loadProblem, type Modules } from "./modules.ts";
import { readSources, type SourceFile, type Sources, stampOf } from "./sources.ts";
import { type LoadedFile, type ToolSource, versionDigest } from "./tool-source.ts";
import type { Trust } from "./trust.ts";

/** A directory with tool files in `tool` and `tools`. */
export interface ToolDirectory {
  path: string;
  /** The workspace that it belongs to: its tools serve there alone, and only as far as their code is trusted. */
  workspace?: { name: string; directory: string };
}

/** The parts that load and register tools. */
export interface DirectoryParts {
  registry: Registry;
  modules: Modules;
  trust: Trust;
}

/** A tool directory with the versions that are loaded. */
interface DirectoryState extends DirectoryParts {
  readonly source: ToolDirectory;
  /** By path, relative to the directory. */
  readonly loaded: Map<string, LoadedFile>;
  /** Stamp of the last refresh. */
  stamp: string | undefined;
}

/** Creates the source of a tool directory; nothing is loaded before its first refresh. */
export function directorySource(directory: ToolDirectory, parts: DirectoryParts): ToolSource {
  const state: DirectoryState = { ...parts, source: directory, loaded: new Map(), stamp: undefined };
  const source: ToolSource = {
    path: directory.path,
    workspace: directory.workspace?.name,
    isPlugin: false,
    problems: [],
    refresh: () => refreshDirectory(state, source),
  };
  return source;
}

async function refreshDirectory(state: DirectoryState, source: ToolSource): Promise<void> {
  const { path, workspace } = state.source;
  // The configuration's directory also holds files that are no code of tools; in .opencode tools may import any code.
  const codeDirectories = workspace ? [path] : ["tool", "tools"].map((name) => join(path, name));
  const trusted = workspace && (await state.trust.get(workspace.directory));
  const stamp = `${trusted}\n${await stampOf(codeDirectories)}`;
  if (stamp === state.stamp) return;
  const sources = await readSources(path, codeDirectories);
  const untrusted = workspace && trustProblem(workspace.directory, sources, trusted);
  closeRemoved(state, sources, workspace !== undefined && trusted === undefined);
  source.problems = untrusted ? [{ path, line: 0, reason: untrusted }] : [];
  if (!untrusted) {
    // Files may change between this check and the import, and tools may import more later: each load is checked again.
    if (workspace) state.modules.expect(await hashesByRealPath(path, sources.files));
    await loadEntries(state, sources, source);
  }
  state.stamp = stamp;
}

/** Removes the tools of files that are gone, or of all files. */
function closeRemoved({ loaded }: DirectoryState, { entries }: Sources, all: boolean): void {
  for (const [path, { close }] of loaded) {
    if (!all && entries.some((entry) => entry.path === path)) continue;
    close();
    loaded.delete(path);
  }
}

/** Loads each file of tools that has changed, or that imports code that has. */
async function loadEntries(state: DirectoryState, { entries, shared }: Sources, source: ToolSource): Promise<void> {
  for (const { path, sha256 } of entries) {
    const version = versionDigest(sha256, shared);
    const before = state.loaded.get(path);
    if (before?.version === version) continue;
    const file = join(state.source.path, path);
    try {
      const { exports, digest } = await state.modules.load(file, version, shared.slice(0, 32));
      const close = state.registry.register(byName(await toolsOf(file, exports, digest)), state.source.workspace?.name);
      before?.close();
      state.loaded.set(path, { version, close });
    } catch (error) {
      const problem = await loadProblem(file, error);
      const reason = before ? `${problem.reason} (the version before it still serves)` : problem.reason;
      source.problems.push({ ...problem, reason });
    }
  }
}

/** Returns the tools of a file: its default export is named like the file, others `file_export`. Ignores exports of other kinds. */
async function toolsOf(file: string, exports: Readonly<Record<string, unknown>>, source: string): Promise<Tool[]> {
  const name = basename(file, extname(file));
  const tools = await Promise.all(
    Object.entries(exports).map(([key, value]) => toolOf(key === "default" ? name : `${name}_${key}`, value, source)),
  );
  const found = tools.filter((tool) => tool !== undefined);
  if (found.length > 0) return found;
  throw new Error("it exports no tool: write, for example, export default Tool.define({ description, args, execute })");
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
    return `this workspace brings ${entries.length} tool file(s), which are not loaded: their code would run with the rights of the service. Review it, then run: toolgate trust ${workspace}`;
  }
  return `the code of this workspace's tools has changed since it was trusted: the source loaded before serves until the service stops, and nothing new is loaded. Review it, then run: toolgate trust ${workspace}`;
}
