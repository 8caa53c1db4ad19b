import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { openDirectory } from "../tool/open-file.ts";
import { externalAsks, type ResolvedPath } from "../tool/path-asks.ts";
import type { ToolContext } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import {
  byDate,
  createReadFilter,
  type DatedFile,
  type FoundFile,
  named,
  nameOnOneLine,
  newestFirst,
  searchNotes,
} from "./fs/found-files.ts";
import { type GlobPattern, nameFilter, passedGlob, readGlob } from "./fs/glob-pattern.ts";
import { everySearch, ripgrep, searchTime } from "./fs/ripgrep.ts";

const maxShown = 100;

/** A directory to search and the patterns that start there. */
interface Root {
  directory: ResolvedPath;
  patterns: GlobPattern[];
}

/** Finds files by name, newest first. It also asks for directories that the pattern leads to, outside the searched one. */
export const glob = defineTool({
  name: "glob",
  version: "1",
  description: [
    "Find files by a glob pattern such as `**/*.ts` or `src/{a,b}/*.md`; a pattern without a slash is found at any depth.",
    "Files that git ignores are left out, hidden ones are not. Returns the 100 that were modified last.",
  ].join(" "),
  input: z.object({
    pattern: filePath.describe("The glob pattern"),
    path: filePath.optional().describe("Directory to search; default the workspace"),
  }),
  permissions: ["glob"],
  readOnly: true,
  idempotent: true,
  async plan({ pattern, path = "." }, { workspace }) {
    const directory = await workspace.resolve(path);
    const roots: Root[] = [];
    for (const alternative of readGlob(pattern)) {
      const base = /^[/~]/.test(alternative.base) ? alternative.base : `${directory.absolute}/${alternative.base}`;
      const resolved = await workspace.resolve(base);
      const known = roots.find((root) => root.directory.absolute === resolved.absolute);
      if (known) known.patterns.push(alternative);
      else roots.push({ directory: resolved, patterns: [alternative] });
    }
    const outside = [directory, ...roots.map((root) => root.directory)].filter(({ external }) => external);
    const asked = [...new Map(outside.map((place) => [place.absolute, { ...place, isDirectory: true }])).values()];
    return {
      title: pattern,
      asks: [
        ...asked.flatMap(externalAsks),
        {
          permission: "glob",
          patterns: [pattern],
          paths: [directory.absolute],
          metadata: { pattern, path: directory.pattern },
        },
      ],
      reveals: [directory, ...asked],
      directory,
      roots,
      async inspect() {
        if (!directory.isDirectory) throw new ToolFailure(`glob path must be a directory: ${directory.absolute}`);
        return { preview: () => ({ paths: roots.map((root) => root.directory.pattern) }) };
      },
    };
  },
  async execute(_input, ctx) {
    const { directory, roots } = ctx.plan;
    if (!directory.isDirectory) throw new ToolFailure(`glob path must be a directory: ${directory.absolute}`);
    const found = new Map<string, DatedFile>();
    let [total, leftOut] = [0, 0];
    let stopped: string | undefined;
    const late = searchTime();
    for (const root of roots.filter(({ directory }) => directory.isDirectory)) {
      if (total > 0) ctx.metadata({ metadata: { count: total } });
      const result = await search(root, ctx, late);
      for (const file of result.newest) found.set(file.absolute, file);
      total += result.total;
      leftOut += result.leftOut;
      stopped ??= result.stopped;
    }
    const shown = [...found.values()].sort(newestFirst).slice(0, maxShown);
    const truncated = total > shown.length || stopped !== undefined;
    const notes = [
      ...(total > shown.length
        ? [
            `(Results are truncated: showing the newest ${maxShown} of ${total}. Consider using a more specific path or pattern.)`,
          ]
        : []),
      ...searchNotes({ leftOut, stopped }),
    ];
    const names = shown.length === 0 ? ["No files found"] : shown.map((file) => nameOnOneLine(file.shown));
    return {
      output: [...names, ...(notes.length > 0 ? ["", ...notes] : [])].join("\n"),
      metadata: { count: shown.length, total, leftOut, truncated },
    };
  },
});

/**
 * Finds the newest files of a root that match its patterns; ripgrep lists the newest first. Files that may not be read are
 * counted only as far as they would have been shown.
 */
async function search(
  { directory, patterns }: Root,
  { judge, metadata, signal }: Pick<ToolContext, "judge" | "metadata" | "signal">,
  late: AbortSignal,
) {
  using opened = openDirectory(directory.absolute);
  const searched = { ...directory, opened };
  const passed = passedGlob(patterns);
  const names: string[] = [];
  const args = [...everySearch, "--files", "--null", "--sortr=modified", ...nameFilter(patterns), "--", "./"];
  const stopped = await ripgrep({ args, cwd: opened.path, delimiter: "\0", signal, late }, (record) => {
    const name = record.slice(2);
    if (!passed(name)) return;
    names.push(name);
    if (names.length % 1_000 === 1) metadata({ metadata: { count: names.length } });
  });
  const { mayRead } = createReadFilter(searched, judge);
  const allowed: FoundFile[] = [];
  let leftOut = 0;
  for (const name of names) {
    if (allowed.length === maxShown) break;
    if (mayRead(name)) allowed.push(...named([name], searched));
    else leftOut += 1;
  }
  return { newest: await byDate(allowed, searched), total: names.length - leftOut, leftOut, stopped };
}
