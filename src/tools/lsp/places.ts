import type { JsonObject } from "@bufbuild/protobuf";
import type { Location, LocationLink, Position } from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { cautionFor } from "../../tool/path-asks.ts";
import type { Judge } from "../../tool/tool.ts";
import type { PathHandle, Workspace } from "../../tool/workspace.ts";
import { nameOnOneLine } from "../fs/found-files.ts";
import { pathOfUri } from "./documents.ts";

/** Results that are shown. */
export const maxResults = 200;
/** Characters of a line that are shown. */
const maxText = 200;

/** Selects the files of results that rules allow to read, and counts the others. */
export interface ResultFilter {
  /** Returns the file of a result; undefined, and counts, if it lies outside of the workspace or may not be read. */
  find(uri: string): Promise<PathHandle | undefined>;
  leftOutCount(): number;
  /** Reads the lines of files that were found. */
  readonly lines: LineReader;
}

/** Creates the filter of one call. */
export function createResultFilter(workspace: Workspace, judge: Judge): ResultFilter {
  const known = new Map<string, Promise<PathHandle | undefined>>();
  let leftOut = 0;
  async function lookUp(uri: string): Promise<PathHandle | undefined> {
    const path = pathOfUri(uri);
    const handle = path === undefined ? undefined : await workspace.resolve(path);
    return handle && mayRead(handle, judge) ? handle : undefined;
  }
  return {
    async find(uri) {
      const found = known.get(uri) ?? lookUp(uri);
      known.set(uri, found);
      const path = await found;
      if (path === undefined) leftOut += 1;
      return path;
    },
    leftOutCount: () => leftOut,
    lines: createLineReader(),
  };
}

/** Reports whether rules allow to read a file of the workspace without asking. */
export function mayRead(path: PathHandle, judge: Judge): boolean {
  if (path.external) return false;
  const ask = { permission: "read", patterns: [path.pattern], paths: [path.absolute], ...cautionFor(path) };
  return judge(ask).action === "allow";
}

/** A place in a file, for people and models: line and column counted from 1. */
export interface ShownPlace {
  readonly path: string;
  readonly line: number;
  readonly column: number;
  /** The lines around it, for people; absent if they cannot be read. */
  readonly preview?: string;
}

/** A place with the text of its line; absent if it cannot be read. */
export interface PlaceWithText extends ShownPlace {
  readonly text?: string;
}

/** Makes the place of a position, with a preview if it has the lines of the file. */
export function placeAt(path: PathHandle, position: Position, lines: readonly string[]): ShownPlace {
  const preview = previewOf(lines, position.line);
  return { path: path.pattern, ...shownPosition(position), ...(preview !== undefined && { preview }) };
}

/** Makes the places of locations that may be shown, sorted by the server. */
export async function shownPlaces(
  found: readonly (Location | LocationLink)[],
  filter: ResultFilter,
): Promise<PlaceWithText[]> {
  const places: PlaceWithText[] = [];
  for (const one of found) {
    const { uri, range } = "targetUri" in one ? { uri: one.targetUri, range: one.targetSelectionRange } : one;
    const path = await filter.find(uri);
    if (path === undefined) continue;
    const lines = places.length < maxResults ? await filter.lines(path) : [];
    const text = lines[range.start.line]?.trim();
    places.push({ ...placeAt(path, range.start, lines), ...(text && { text: visible(text.slice(0, maxText)) }) });
  }
  return places;
}

/** Converts a position of the protocol to one that counts from 1. */
const shownPosition = ({ line, character }: Position) => ({ line: line + 1, column: character + 1 });

/** Formats a place on one line, as compilers do, with the text of its line. */
export function placeLine({ path, line, column, text }: PlaceWithText): string {
  const place = `${nameOnOneLine(path)}:${line}:${column}`;
  return text === undefined ? place : `${place}: ${text}`;
}

/** Composes the output of a list: a head if it is cut, the lines, and what was left out. */
export function listOutput(
  lines: readonly string[],
  { what, empty, leftOut, max = maxResults, links }: ListTexts,
): { output: string; metadata: JsonObject } {
  const shown = lines.slice(0, max);
  const truncated = lines.length > shown.length;
  const head = truncated ? [`Found ${lines.length} ${what} (showing first ${max}):`] : [];
  const body = lines.length === 0 ? [empty] : shown;
  const note = leftOut === 0 ? [] : ["", leftOutNote(leftOut)];
  return {
    output: [...head, ...body, ...note].join("\n"),
    metadata: { count: lines.length, leftOut, truncated, ...(links && linkMetadata(links, max)) },
  };
}

/** The words of a list, its limit, and the places of its lines. */
interface ListTexts {
  readonly what: string;
  readonly empty: string;
  readonly leftOut: number;
  readonly max?: number;
  readonly links?: PlaceLinks;
}

/** Says that results are missing. */
export const leftOutNote = (count: number) =>
  `(${count} ${count === 1 ? "result is" : "results are"} left out: outside the workspace, or in files that may not be read without approval.)`;

const maxFileBytes = 1_048_576n;
/** Lines before and after a place in its preview. */
const aroundCount = 2;
const maxLineLength = 200;
/** Characters of all previews of a call, which are stored with it. */
const maxPreviewLength = 16_384;

/** Returns the lines of a file; none for one that cannot be read or is large. */
type LineReader = (path: PathHandle) => Promise<readonly string[]>;

/** Creates a reader that reads each file once. */
export function createLineReader(): LineReader {
  const files = new Map<string, readonly string[]>();
  return async (path) => {
    const lines = files.get(path.absolute) ?? (await linesOf(path));
    files.set(path.absolute, lines);
    return lines;
  };
}

async function linesOf(path: PathHandle): Promise<readonly string[]> {
  using file = path.open();
  if (file === undefined || file.stats.isDirectory() || file.stats.size > maxFileBytes) return [];
  return (await file.text()).split("\n");
}

/** Shows the lines around a line with their numbers, its own with an arrow; undefined if there is no such line. */
function previewOf(lines: readonly string[], line: number): string | undefined {
  if (lines[line] === undefined) return undefined;
  const first = Math.max(line - aroundCount, 0);
  const around = lines.slice(first, line + aroundCount + 1);
  const width = String(first + around.length).length;
  return around
    .map((text, i) => {
      const mark = first + i === line ? ">" : " ";
      return `${mark} ${String(first + i + 1).padStart(width)}  ${visible(text.trimEnd().slice(0, maxLineLength))}`;
    })
    .join("\n");
}

/** The places of a result, and the directory that their paths start from. */
interface PlaceLinks {
  readonly directory: string;
  readonly places: readonly { path: string; line: number; column: number; preview?: string }[];
}

/** Makes the metadata by which the console and the terminal show places as links, in the order of the output. */
export function linkMetadata({ directory, places }: PlaceLinks, max: number): JsonObject {
  let length = 0;
  const shown = places.slice(0, max).map(({ path, line, column, preview = "" }) => {
    length += preview.length;
    return { path, line, column, ...(preview !== "" && length <= maxPreviewLength && { preview }) };
  });
  return { directory, places: shown };
}
