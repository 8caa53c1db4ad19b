import { createHash } from "node:crypto";
import { readdir, readlink } from "node:fs/promises";
import { extname, join, relative } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { SourceSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { readRegularFile } from "../../core/read-files.ts";
import type { Problem } from "./problem.ts";
import { createFileStamp, maxCodeFileBytes, type PathStamps, type Trust } from "./trust.ts";

/** A file of code that defines tools, or that such a file imports. */
export interface SourceFile {
  /** Relative to the directory. */
  path: string;
  sha256: string;
}

/** The code in a tool directory at one moment. */
export interface Sources {
  files: SourceFile[];
  /** Files directly in `tool` or `tools`: each is loaded. */
  entries: SourceFile[];
  /** Digest of all files but the entries. */
  shared: string;
  /** All directories with code, and files, except those of installed packages: their metadata shows each change. */
  watched: string[];
  /** Digest of all files, including those of installed packages. */
  digest: string;
}

const codeExtensions = new Set([".ts", ".mts", ".cts", ".js", ".mjs", ".cjs", ".json", ".node", ".wasm"]);
const maxFiles = 50_000;

/** Reads all code in `directories`, which are `root` or lie in it. */
export async function readSources(root: string, directories: readonly string[]): Promise<Sources> {
  const files: SourceFile[] = [];
  const watched = [...directories];
  for await (const { path, isDirectory } of codeIn(directories)) {
    if (!path.includes("/node_modules/")) watched.push(path);
    if (isDirectory) continue;
    const content = await readRegularFile(path, maxCodeFileBytes).catch(() => readlink(path));
    files.push({ path: relative(root, path), sha256: createHash("sha256").update(content).digest("hex") });
  }
  files.sort((a, b) => (a.path < b.path ? -1 : 1));
  const isEntry = ({ path }: SourceFile) => /^tools?\/[^/]+\.(ts|js)$/.test(path) && !path.endsWith(".d.ts");
  return {
    files,
    watched,
    entries: files.filter(isEntry),
    shared: digestOf(files.filter((file) => !isEntry(file))),
    digest: digestOf(files),
  };
}

function digestOf(files: readonly SourceFile[]): string {
  return createHash("sha256")
    .update(JSON.stringify(files.map(({ path, sha256 }) => [path, sha256])))
    .digest("hex");
}

async function* codeIn(directories: readonly string[]): AsyncGenerator<{ path: string; isDirectory: boolean }> {
  const ahead = [...directories];
  let count = 0;
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const entry of await readdir(at, { withFileTypes: true }).catch(() => [])) {
      const path = join(at, entry.name);
      if (entry.isDirectory() && entry.name !== ".git") {
        ahead.push(path);
        yield { path, isDirectory: true };
      }
      // A link to a directory counts by its target path.
      if (!entry.isSymbolicLink() && !(entry.isFile() && codeExtensions.has(extname(entry.name)))) continue;
      count += 1;
      if (count > maxFiles) {
        throw new Error(
          `${directories[0]} holds more than ${maxFiles} files of code; move those that are no tools elsewhere`,
        );
      }
      yield { path, isDirectory: false };
    }
  }
}

/** A directory of tool files, or plugins, in one workspace; loaded again whenever it changes. */
export interface ToolSource {
  /** The workspace root in which its tools and hooks serve. */
  readonly workspace: string;
  /** True for a plugin that the configuration names. */
  readonly isConfigured: boolean;
  /** Files that could not be loaded at the last refresh, and processes that ended. */
  problems(): Problem[];
  /** The reason to deny all calls that it would guard; undefined if it is loaded, or not required. */
  guardProblem(): string | undefined;
  /** Reports whether nothing has changed since the last refresh; synchronous, since each call asks. See `FileStamp`. */
  isCurrent(seen?: PathStamps): boolean;
  /** Loads what has changed. It never throws: what cannot be loaded is a problem. */
  refresh(): Promise<void>;
  /** Describes its process; undefined if it needs none. */
  describe(): Promise<MessageInitShape<typeof SourceSchema> | undefined>;
  close(): Promise<void>;
}

/**
 * Creates the source of a workspace's policy file, which defines no tools. In a trusted workspace a file that is not trusted as it
 * is becomes a problem, since its rules only narrow until it is trusted again.
 */
export function workspacePolicySource(workspace: { name: string; directory: string }, trust: Trust): ToolSource {
  const codeDirectory = join(workspace.directory, ".opencode");
  const path = join(codeDirectory, "config.toml");
  const stamp = createFileStamp();
  let problems: Problem[] = [];
  return {
    workspace: workspace.name,
    isConfigured: false,
    problems: () => problems,
    guardProblem: () => undefined,
    isCurrent: stamp.isCurrent,
    async refresh() {
      stamp.take([path, trust.fileOf(workspace.directory)], Date.now());
      // Where it is unknown, the problem of the code says so.
      const isTrusted = (await trust.get(workspace.directory).catch(() => undefined)) !== undefined;
      const present = await policyDigestIn(codeDirectory);
      const trusted = await trust.policyOf(workspace.directory);
      const isStale = isTrusted && present !== undefined && present !== trusted;
      problems = isStale ? [{ path, line: 0, reason: staleReason(workspace.directory, trusted) }] : [];
    },
    describe: async () => undefined,
    close: async () => {},
  };
}

function staleReason(directory: string, trusted: string | undefined): string {
  const state =
    trusted === undefined ? "was added after the workspace was trusted" : "has changed since it was trusted";
  return `the policy file ${state}, so its rules only narrow; review it, then run: toolgate trust ${directory}`;
}

/** Returns the SHA-256 of the policy file in a workspace's `.opencode`; undefined if there is none. */
export async function policyDigestIn(codeDirectory: string): Promise<string | undefined> {
  const text = await readRegularFile(join(codeDirectory, "config.toml"), maxCodeFileBytes).catch(() => undefined);
  return text && createHash("sha256").update(text).digest("hex");
}
