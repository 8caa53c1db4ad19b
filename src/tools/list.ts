import { basename, dirname } from "node:path";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { openDirectory } from "../tool/open-file.ts";
import { filePath } from "../tool/workspace.ts";
import { createReadFilter, nameOnOneLine, searchNotes } from "./fs/found-files.ts";
import { everySearch, ripgrep, searchTime } from "./fs/ripgrep.ts";

const maxShown = 100;
/** Directories that are left out even if no .gitignore names them. */
const ignoredNames = ["node_modules", "__pycache__", ".venv", "venv", "target", "dist", "build", ".cache", "coverage"];

/** Shows the files below a directory as a tree. */
export const listTool = defineTool({
  name: "list",
  version: "1",
  description: [
    "List the files below a directory as a tree, at most 100. Files that git ignores are left out, and directories of dependencies and builds.",
    "To see all of one directory use read; to find files by name use glob.",
  ].join(" "),
  input: z.object({
    path: filePath.optional().describe("Directory; default the workspace"),
    ignore: z.array(filePath).max(50).default([]).describe("Globs of further names to leave out"),
  }),
  permissions: ["list"],
  readOnly: true,
  idempotent: true,
  async plan({ path = "." }, { workspace }) {
    const directory = await workspace.resolve(path);
    const checkDirectory = () => {
      if (!directory.isDirectory) throw new ToolFailure(`list path must be a directory: ${directory.absolute}`);
    };
    return {
      title: directory.pattern,
      asks: directory.asks("list"),
      reveals: [directory],
      directory,
      checkDirectory,
      async inspect() {
        checkDirectory();
        return { preview: () => ({ paths: [directory.pattern] }) };
      },
    };
  },
  async execute({ ignore }, { plan: { directory, checkDirectory }, judge, metadata, signal }) {
    checkDirectory();
    using opened = openDirectory(directory.absolute);
    const names: string[] = [];
    // Exclusions only: an including glob would bring back files that git ignores.
    const excluded = [...ignoredNames, ...ignore.map((glob) => glob.replace(/^!+/, ""))].map(
      (glob) => `--glob=!${glob}`,
    );
    const args = [...everySearch, ...excluded, "--files", "--null", "--sort=path", "--", "./"];
    const search = { args, cwd: opened.path, delimiter: "\0", signal, late: searchTime() } as const;
    const stopped = await ripgrep(search, (record) => {
      names.push(record.slice(2));
      if (names.length % 1_000 === 1) metadata({ metadata: { count: names.length } });
    });
    const { mayRead } = createReadFilter({ ...directory, opened }, judge);
    const files = names.filter(mayRead);
    const shown = files.slice(0, maxShown);
    const notes = [
      ...(files.length > shown.length
        ? [`(Showing the first ${maxShown} of ${files.length} files. Name a directory further down.)`]
        : []),
      ...searchNotes({ leftOut: names.length - files.length, stopped }),
    ];
    return {
      output: [`${directory.absolute}/`, ...tree(shown), ...(notes.length > 0 ? ["", ...notes] : [])].join("\n"),
      metadata: {
        count: shown.length,
        total: files.length,
        truncated: files.length > shown.length || stopped !== undefined,
      },
    };
  },
});

/** Formats sorted paths as a tree, each level indented further. */
function tree(names: readonly string[]): string[] {
  const known = new Set<string>(["."]);
  const open = (directory: string): string[] => {
    if (known.has(directory)) return [];
    known.add(directory);
    return [...open(dirname(directory)), `${indent(directory)}${nameOnOneLine(basename(directory))}/`];
  };
  return names.flatMap((name) => [...open(dirname(name)), `${indent(name)}${nameOnOneLine(basename(name))}`]);
}

const indent = (path: string) => "  ".repeat(path.split("/").length);
