import { ToolFailure } from "../../tool/errors.ts";
import { type OpenFile, openDirectory, openFile } from "../../tool/open-file.ts";
import type { ResolvedPath } from "../../tool/path-asks.ts";
import type { ToolContext } from "../../tool/tool.ts";
import {
  byDate,
  createReadFilter,
  type DatedFile,
  type FoundFile,
  named,
  nameOnOneLine,
  readable,
} from "../fs/found-files.ts";
import { meetsBelow, nameFilter, readGlob } from "../fs/glob-pattern.ts";
import { everySearch, ripgrep, searchTime } from "../fs/ripgrep.ts";

const maxLineLength = 2_000;

/** A search of the content of files. */
export interface FileSearch {
  /** A regular expression of ripgrep. */
  readonly pattern: string;
  readonly include?: string | undefined;
  readonly context: number;
  readonly multiline: boolean;
  readonly show: "lines" | "files" | "count";
  /** File types of ripgrep; default all files. */
  readonly types?: readonly string[];
}

/** Matches of a search, up to the maximum that is shown. */
export interface FoundMatches {
  lines: readonly string[];
  shown: number;
  total: number;
  /** The number of files that were left out, since reading them needs approval. */
  leftOut: number;
  /** The reason why the search stopped early. */
  stopped: string | undefined;
  unit: "matches" | "files";
}

/**
 * Searches the files below a directory that rules allow to read without an ask; others are counted. `isWanted` selects files by
 * their name relative to it.
 */
export async function searchDirectory(
  input: FileSearch,
  directory: Pick<ResolvedPath, "absolute" | "pattern">,
  ctx: Pick<ToolContext, "judge" | "signal" | "metadata">,
  isWanted: (name: string) => boolean = () => true,
): Promise<FoundMatches> {
  const { include, show } = input;
  using opened = openDirectory(directory.absolute);
  const searched = { ...directory, opened };
  const patterns = include === undefined ? [] : readGlob(include);
  if (patterns.some(({ base }) => /^[/~]|(^|\/)\.\.(\/|$)/.test(base))) {
    throw new ToolFailure(
      `include ${include} leads out of the directory. Name the directory as path, and the files in it as include.`,
    );
  }
  const isMeant = (name: string) =>
    isWanted(name) && (patterns.length === 0 || patterns.some((pattern) => meetsBelow(pattern, name)));
  const { mayBeRestricted, mayRead } = createReadFilter(searched, ctx.judge);
  const filter = [
    ...(patterns.length === 0 ? [] : nameFilter(patterns)),
    ...(input.types ?? []).map((type) => `--type=${type}`),
  ];
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
    if (counts.size % 100 === 0) ctx.metadata({ metadata: { files: counts.size } });
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
    return { lines, shown: shown.length, total: files.length, leftOut, stopped, unit: "files" };
  }
  let capacity = maxMatches;
  const newest = files.filter((file) => {
    if (capacity <= 0) return false;
    capacity -= countOf(file);
    return true;
  });
  return await showLines(input, newest, { total, leftOut, stopped }, { signal: ctx.signal, late });
}

/** Shows matching lines of files, in their order. It searches the files as opened, whatever replaces them later. */
export async function showLines(
  input: FileSearch,
  files: readonly FoundFile[],
  found: { total?: number; leftOut: number; stopped: string | undefined },
  { signal, late }: { signal: AbortSignal; late: AbortSignal },
): Promise<FoundMatches> {
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
  const shown = matches.count();
  return { total: shown, ...found, lines: matches.lines(), shown, stopped: found.stopped ?? stopped, unit: "matches" };
}

/** Opens a found file; undefined if it was replaced meanwhile. */
function openIfSame(file: FoundFile): OpenFile | undefined {
  try {
    return openFile(file);
  } catch {
    return undefined;
  }
}

/** Makes the arguments of a search that prints lines. */
export function lineArgs(input: FileSearch, ...paths: string[]): string[] {
  return [
    ...everySearch,
    ...["--line-number", "--with-filename", "--null", "--no-heading", `--context=${input.context}`],
    ...[`--max-count=${maxMatches + 1}`, `--max-columns=${maxLineLength}`, "--max-columns-preview"],
    ...expression(input),
    "--",
    ...paths,
  ];
}

function expression({ pattern, multiline }: FileSearch): string[] {
  return [...(multiline ? ["--multiline", "--multiline-dotall"] : []), `--regexp=${pattern}`];
}

/** Maximum count of matches that are shown. */
export const maxMatches = 100;
/** File descriptor of the first searched file in ripgrep. */
const firstDescriptor = 3;

/** Collects the matches of ripgrep in files that it knows by descriptor, up to the maximum. */
export function createMatches(names: readonly string[]) {
  const byFile = names.map((): { line: string; isMatch: boolean }[] => []);
  return {
    add(record: string): void {
      const [path = "", line] = record.split("\0", 2);
      const at = path.startsWith("/dev/fd/") ? Number(path.slice("/dev/fd/".length)) - firstDescriptor : 0;
      const [, number, sign, text] = /^(\d+)([:-])(.*)$/s.exec(line ?? "") ?? [];
      if (number === undefined) byFile.at(-1)?.push({ line: "  --", isMatch: false });
      else byFile[at]?.push({ line: `  Line ${number}${sign} ${text?.replace(/\r$/, "")}`, isMatch: sign === ":" });
    },
    count: () => byFile.flat().filter(({ isMatch }) => isMatch).length,
    /** Returns the lines, grouped under the name of each file. */
    lines(): string[] {
      let capacity = maxMatches;
      const shown: string[] = [];
      for (const [i, lines] of byFile.entries()) {
        const end = lines.findIndex(({ isMatch }) => isMatch && capacity-- <= 0);
        const selected = end === -1 ? lines : lines.slice(0, end);
        if (selected.length > 0)
          shown.push(...(shown.length > 0 ? [""] : []), `${names[i]}:`, ...selected.map(({ line }) => line));
      }
      return shown;
    },
  };
}
