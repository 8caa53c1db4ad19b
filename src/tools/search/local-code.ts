import { basename } from "node:path";
import type { LocalSearch } from "../../core/search-providers.ts";
import { externalAsks } from "../../tool/path-asks.ts";
import type { ToolContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { searchDirectory } from "../grep/search-directory.ts";
import { escaped } from "./code-providers.ts";
import type { CodeQuery } from "./provider.ts";

/** Matches in the configured directories. */
export interface LocalMatches {
  /** Lines under the names of their files, for each directory that has any. */
  texts: string[];
  matches: number;
  /** Files that rules do not allow to read without an ask. */
  leftOut: number;
  /** Directories that rules deny. */
  denied: number;
  stopped: string | undefined;
}

/** Resolves the configured directories as paths of a call. */
export async function resolveRoots({ roots }: LocalSearch, resolve: (path: string) => Promise<PathHandle>) {
  return await Promise.all(roots.map(resolve));
}

/**
 * Searches the configured directories. The configuration stands for the approval of `external_directory`, which rules may still
 * deny; of the files only those are searched that rules allow to read.
 */
export async function searchRoots(
  { query, language, repo, path, useRegexp }: CodeQuery,
  roots: readonly PathHandle[],
  ctx: Pick<ToolContext, "judge" | "signal" | "metadata">,
): Promise<LocalMatches> {
  const found: LocalMatches = { texts: [], matches: 0, leftOut: 0, denied: 0, stopped: undefined };
  const search = {
    pattern: useRegexp ? query : escaped(query),
    types: language.map(typeOf),
    context: 0,
    multiline: query.includes("\n"),
    show: "lines",
  } as const;
  for (const root of roots) {
    if (externalAsks(root).some((ask) => ctx.judge(ask).action === "deny")) {
      found.denied += 1;
      continue;
    }
    const name = basename(root.absolute);
    const isWanted = (file: string) =>
      (path === undefined || file.includes(path)) && (repo === undefined || `${name}/${file}`.includes(repo));
    const { lines, total, leftOut, stopped } = await searchDirectory(search, root, ctx, isWanted);
    if (lines.length > 0) found.texts.push(lines.join("\n"));
    found.matches += total;
    found.leftOut += leftOut;
    found.stopped ??= stopped;
  }
  return found;
}

/** Returns ripgrep's name of a language; it knows most by their own name. */
function typeOf(language: string): string {
  const name = language.toLowerCase();
  return typeNames[name] ?? name;
}

const typeNames: Readonly<Record<string, string>> = {
  "c++": "cpp",
  "c#": "csharp",
  javascript: "js",
  jsx: "js",
  typescript: "ts",
  tsx: "ts",
  golang: "go",
  shell: "sh",
  bash: "sh",
};
