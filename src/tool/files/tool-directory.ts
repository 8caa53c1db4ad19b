import { readFile, realpath } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import { byName, type Registry } from "../registry.ts";
import type { Tool } from "../tool.ts";
import { createFileStamp, type FileStamp } from "./file-stamp.ts";
import { toolOf } from "./foreign.ts";
import { loadProblem, type Modules } from "./modules.ts";
import { readSources, type SourceFile, type Sources } from "./sources.ts";
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
  readonly stamp: FileStamp;
}

/** Creates the source of a tool directory; nothing is loaded before its first refresh. */
export function directorySource(directory: ToolDirectory, parts: DirectoryParts): ToolSource {
  const state: DirectoryState = { ...parts, source: directory, loaded: new Map(), stamp: createFileStamp() };
  const source: ToolSource = {
    path: directory.path,
    workspace: directory.workspace?.name,
    problems: [],
    guardProblem: () => undefined,
    isCurrent: state.stamp.isCurrent,
    refresh: () => refreshDirectory(state, source),
  };
  return source;
}

async function refreshDirectory(state: DirectoryState, source: ToolSource): Promise<void> {
  const { path, workspace } = state.source;
  // The configuration's directory also holds files that are no code of tools; in .opencode tools may import any code.
  const codeDirectories = workspace ? [path] : ["tool", "tools"].map((name) => join(path, name));
  const readSince = Date.now();
  const sources = await readSources(path, codeDirectories);
  takeStamp(state, sources, readSince);
  const trusted = workspace && (await state.trust.get(workspace.directory));
  const untrusted = workspace && trustProblem(workspace.directory, sources, trusted);
  closeRemoved(state, sources, workspace !== undefined && trusted === undefined);
  source.problems = untrusted ? [{ path, line: 0, reason: untrusted }] : [];
  if (!untrusted) {
    // Files may change between this check and the import, and tools may import more later: each load is checked again.
    if (workspace) state.modules.expect(await hashesByRealPath(path, sources.files));
    await loadEntries(state, sources, source);
    // Imports are known only now.
    takeStamp(state, sources, readSince);
  }
}

function takeStamp(
  { source, stamp, trust, modules }: DirectoryState,
  { watched, entries }: Sources,
  readSince: number,
): void {
  const record = source.workspace ? [trust.fileOf(source.workspace.directory)] : [];
  const imported = modules.importsOf(entries.map((entry) => join(source.path, entry.path)));
  stamp.take([...watched, ...record, ...imported], readSince);
}

/** Digests the code that entries import: all other files of the directory, and what loaded entries import from elsewhere. */
async function sharedDigest({ source, modules }: DirectoryState, { entries, files, shared }: Sources): Promise<string> {
  const isOther = new Set(files.filter((file) => !entries.includes(file)).map(({ path }) => join(source.path, path)));
  const imported = modules.importsOf(entries.map(({ path }) => join(source.path, path)));
  const contents = imported.filter((path) => !isOther.has(path)).map((path) => readFile(path).catch(() => ""));
  return contents.length === 0 ? shared : versionDigest(shared, ...(await Promise.all(contents)));
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
async function loadEntries(state: DirectoryState, sources: Sources, source: ToolSource): Promise<void> {
  const { entries } = sources;
  const shared = await sharedDigest(state, sources);
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
