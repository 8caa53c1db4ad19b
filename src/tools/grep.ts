import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { externalAsks } from "../tool/path-asks.ts";
import type { ToolContext, ToolResult } from "../tool/tool.ts";
import { filePath, type PathHandle } from "../tool/workspace.ts";
import { readable, searchNotes } from "./fs/found-files.ts";
import { ripgrep, searchTime } from "./fs/ripgrep.ts";
import {
  createMatches,
  type FoundMatches,
  lineArgs,
  maxMatches,
  searchDirectory,
  showLines,
} from "./grep/search-directory.ts";

const outputPrefix = "toolgate-output:";

const input = z.object({
  pattern: z.string().min(1, "pattern is required").describe("A regular expression, as ripgrep understands it"),
  path: filePath.optional().describe("File or directory to search, or toolgate-output:ID; default the workspace"),
  include: filePath.optional().describe('Which files to search, as a glob: "*.ts", "src/**/*.{ts,tsx}"'),
  context: z.int().min(0).max(20).default(0).describe("How many lines to show before and after each match"),
  multiline: z.boolean().default(false).describe("Whether a match may span lines; `.` then means line ends too"),
  show: z
    .enum(["lines", "files", "count"])
    .default("lines")
    .describe("Of a directory: matching lines, only the files that have any, or how many each has"),
});
type Input = z.output<typeof input>;

/** Searches the content of files. Files that may not be read without an ask are left out and counted. */
export const grep = defineTool({
  name: "grep",
  version: "1",
  description: [
    "Search the content of files by a regular expression. Files that git ignores and binary files are left out, hidden ones are not.",
    "Returns at most 100 matching lines, those of the files that were modified last.",
  ].join(" "),
  input,
  permissions: ["grep"],
  readOnly: true,
  idempotent: true,
  async plan({ pattern, path = ".", include }, { workspace }) {
    if (path.startsWith(outputPrefix)) return { title: pattern, asks: [] };
    const directory = await workspace.resolve(path);
    const metadata = { pattern, path: directory.pattern, ...(include !== undefined && { include }) };
    return {
      title: pattern,
      asks: [
        ...externalAsks(directory),
        { permission: "grep", patterns: [pattern], paths: [directory.absolute], metadata },
      ],
      reveals: [directory],
      directory,
      async inspect() {
        checkPlace(directory);
        return { preview: () => ({ paths: [directory.pattern] }) };
      },
    };
  },
  async execute(input, ctx) {
    const { directory } = ctx.plan;
    if (directory === undefined) return await searchOutput(input, ctx);
    checkPlace(directory);
    return directory.isDirectory
      ? result(await searchDirectory(input, directory, ctx))
      : await searchFile(input, directory, ctx);
  },
});

function checkPlace(path: PathHandle): void {
  if (path.isDirectory) return;
  using file = path.open();
  if (file === undefined) throw new ToolFailure(`Search path not found: ${path.absolute}`);
}

async function searchFile(input: Input, file: PathHandle, ctx: ToolContext): Promise<ToolResult> {
  const { absolute, pattern: shown, otherNames } = file;
  const files = readable([{ name: "", absolute, shown, otherNames, modified: 0 }], ctx.judge);
  const end = { leftOut: 1 - files.length, stopped: undefined };
  return result(await showLines(input, files, end, { signal: ctx.signal, late: searchTime() }));
}

async function searchOutput(input: Input, { outputs, signal }: ToolContext): Promise<ToolResult> {
  const name = input.path ?? "";
  const id = name.slice(outputPrefix.length);
  const isKnown = /^[A-Za-z0-9_-]+$/.test(id) && (await outputs.read(id, 0, 1)) !== undefined;
  if (!isKnown)
    throw new ToolFailure(
      `There is no stored output ${id} in this session. Take the ID from an earlier call's output.`,
    );
  async function* chunks() {
    for (let offset = 0; ; ) {
      const { data = new Uint8Array() } = (await outputs.read(id, offset, 65_536)) ?? {};
      if (data.length === 0) return;
      yield data;
      offset += data.length;
    }
  }
  const found = createMatches([name]);
  const search = { args: lineArgs(input, "-"), input: chunks(), delimiter: "\n", signal, late: searchTime() } as const;
  const stopped = await ripgrep(search, found.add);
  const shown = found.count();
  return result({ lines: found.lines(), shown, total: shown, leftOut: 0, stopped, unit: "matches" });
}

const one = { matches: "match", files: "file" };

function result({ lines, shown, total, leftOut, stopped, unit }: FoundMatches): ToolResult {
  const count = Math.min(shown, maxMatches);
  const truncated = total > count || stopped !== undefined;
  const more = total > count ? `, the first ${count} of the files modified last are shown` : "";
  const head = lines.length === 0 ? "No files found" : `Found ${total} ${total === 1 ? one[unit] : unit}${more}`;
  const notes = [
    ...(total > count ? ["(Results truncated. Consider using a more specific path or pattern.)"] : []),
    ...searchNotes({ leftOut, stopped }),
  ];
  return {
    output: [head, ...lines, ...(notes.length > 0 ? ["", ...notes] : [])].join("\n"),
    metadata: { [unit]: total, leftOut, truncated },
  };
}
