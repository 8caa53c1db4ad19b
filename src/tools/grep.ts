import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { type OpenFile, openDirectory, openFile } from "../tool/open-file.ts";
import { externalAsks } from "../tool/path-asks.ts";
import type { ToolContext, ToolResult } from "../tool/tool.ts";
import { filePath, type PathHandle } from "../tool/workspace.ts";
import {
  byDate,
  createReadFilter,
  type DatedFile,
  type FoundFile,
  named,
  nameOnOneLine,
  readable,
  searchNotes,
} from "./fs/found-files.ts";
import { meetsBelow, nameFilter, readGlob } from "./fs/glob-pattern.ts";
import { everySearch, ripgrep, searchTime } from "./fs/ripgrep.ts";
import { createMatches, firstDescriptor, maxMatches } from "./grep/matches.ts";

const maxLineLength = 2_000;
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
      ? await searchDirectory(input, directory, ctx)
      : await searchFile(input, directory, ctx);
  },
});

function checkPlace(path: PathHandle): void {
  if (path.isDirectory) return;
  using file = path.open();
  if (file === undefined) throw new ToolFailure(`Search path not found: ${path.absolute}`);
}

async function searchDirectory(input: Input, directory: PathHandle, ctx: ToolContext): Promise<ToolResult> {
  const { include, show } = input;
  using opened = openDirectory(directory.absolute);
  const searched = { ...directory, opened };
  const patterns = include === undefined ? [] : readGlob(include);
  if (patterns.some(({ base }) => /^[/~]|(^|\/)\.\.(\/|$)/.test(base))) {
    throw new ToolFailure(
      `include ${include} leads out of the directory. Name the directory as path, and the files in it as include.`,
    );
  }
  const isMeant = (name: string) => patterns.length === 0 || patterns.some((pattern) => meetsBelow(pattern, name));
  const { mayBeRestricted, mayRead } = createReadFilter(searched, ctx.judge);
  const filter = patterns.length === 0 ? [] : nameFilter(patterns);
  const late = searchTime();
  const common = { cwd: opened.path, signal: ctx.signal, late };

  const counts = new Map<string, number>();
  const count = ["--count", "--with-filename", "--null", ...filter, ...expression(input), "--", "./"];
  let begun = "";
  const counting = ripgrep({ ...common, args: [...everySearch, ...count], delimiter: "\n" }, (record) => {
    // File names may contain line ends.
    begun += record;
    const [, name, lines] = /^\.\/([^\0]*)\0(\d+)$/.exec(begun) ?? [];
    begun = record.includes("\0") ? "" : `${begun}\n`;
    if (name === undefined || !isMeant(name) || !mayRead(name)) return;
    counts.set(name, Number(lines));
    if (counts.size % 100 === 1) ctx.metadata({ metadata: { files: counts.size } });
  });
  // Counted by name alone: a count of matches would reveal content.
  let leftOut = 0;
  // One thread suffices for names and leaves the processors to the search.
  const listing = [...everySearch, "--files", "--null", "--threads=1", ...filter, "--", "./"];
  const names = { ...common, args: listing, delimiter: "\0", prefilter: mayBeRestricted } as const;
  const naming = ripgrep(names, (record) => {
    const name = record.slice(2);
    if (isMeant(name) && !mayRead(name)) leftOut += 1;
  });
  const [countingStopped, namingStopped] = await Promise.all([counting, naming]);
  const stopped = countingStopped ?? namingStopped;

  const found = await byDate(named([...counts.keys()], searched), searched);
  // The filter above has judged their names; files with other names are judged again.
  const files = found.filter((file) => !file.otherNames || readable([file], ctx.judge).length > 0);
  leftOut += found.length - files.length;
  const countOf = ({ name }: DatedFile) => counts.get(name) ?? 0;
  const total = files.reduce((sum, file) => sum + countOf(file), 0);
  if (show !== "lines") {
    const shown = files.slice(0, maxMatches);
    const lines = shown.map((file) => {
      const name = nameOnOneLine(file.shown);
      return show === "count" ? `${name}: ${countOf(file)}` : name;
    });
    return result(lines, { shown: shown.length, total: files.length, leftOut, stopped, unit: "files" });
  }
  let capacity = maxMatches;
  const newest = files.filter((file) => {
    if (capacity <= 0) return false;
    capacity -= countOf(file);
    return true;
  });
  return await showLines(input, newest, { total, leftOut, stopped }, { signal: ctx.signal, late });
}

async function searchFile(input: Input, file: PathHandle, ctx: ToolContext): Promise<ToolResult> {
  const { absolute, pattern: shown, otherNames } = file;
  const files = readable([{ name: "", absolute, shown, otherNames, modified: 0 }], ctx.judge);
  const end = { leftOut: 1 - files.length, stopped: undefined };
  return await showLines(input, files, end, { signal: ctx.signal, late: searchTime() });
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
  return result(found.lines(), { shown: found.count(), leftOut: 0, stopped, unit: "matches" });
}

/** Shows matching lines of files, in their order. It searches the files as opened, whatever replaces them later. */
async function showLines(
  input: Input,
  files: readonly FoundFile[],
  found: { total?: number; leftOut: number; stopped: string | undefined },
  { signal, late }: { signal: AbortSignal; late: AbortSignal },
): Promise<ToolResult> {
  using opened = new DisposableStack();
  const names: string[] = [];
  const descriptors: number[] = [];
  for (const file of files) {
    const handle = openIfSame(file);
    if (handle === undefined) continue;
    opened.use(handle);
    descriptors.push(handle.fd);
    names.push(nameOnOneLine(file.shown));
  }
  const matches = createMatches(names);
  const args = lineArgs(input, ...descriptors.map((_, i) => `/dev/fd/${firstDescriptor + i}`));
  const search = { args, files: descriptors, delimiter: "\n", signal, late } as const;
  const stopped = names.length === 0 ? undefined : await ripgrep(search, matches.add);
  const end = { ...found, shown: matches.count(), stopped: found.stopped ?? stopped, unit: "matches" } as const;
  return result(matches.lines(), end);
}

/** Opens a found file; undefined if it was replaced meanwhile. */
function openIfSame(file: FoundFile): OpenFile | undefined {
  try {
    return openFile(file);
  } catch {
    return undefined;
  }
}

function lineArgs(input: Input, ...paths: string[]): string[] {
  return [
    ...everySearch,
    ...["--line-number", "--with-filename", "--null", "--no-heading", `--context=${input.context}`],
    ...[`--max-count=${maxMatches + 1}`, `--max-columns=${maxLineLength}`, "--max-columns-preview"],
    ...expression(input),
    "--",
    ...paths,
  ];
}

function expression({ pattern, multiline }: Input): string[] {
  return [...(multiline ? ["--multiline", "--multiline-dotall"] : []), `--regexp=${pattern}`];
}

interface End {
  shown: number;
  total?: number;
  leftOut: number;
  stopped: string | undefined;
  unit: "matches" | "files";
}

const one = { matches: "match", files: "file" };

function result(lines: readonly string[], { shown, total = shown, leftOut, stopped, unit }: End): ToolResult {
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
