import type { JsonObject } from "@bufbuild/protobuf";
import { visible } from "../../core/visible.ts";
import type { PathHandle } from "../../tool/workspace.ts";

const maxFileBytes = 1_048_576n;
/** Lines before and after a place in its preview. */
const aroundCount = 2;
const maxLineLength = 200;
/** Characters of all previews of a call, which are stored with it. */
const maxPreviewLength = 16_384;

/** Returns the lines of a file; none for one that cannot be read or is large. */
export type LineReader = (path: PathHandle) => Promise<readonly string[]>;

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
export function previewOf(lines: readonly string[], line: number): string | undefined {
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
export interface PlaceLinks {
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
