import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import type { ExistingFile } from "./existing-file.ts";
import {
  createLineSearch,
  createSearchSteps,
  findText,
  type LineForm,
  type SearchSteps,
  stepsOfLine,
} from "./search-text.ts";

/** Input fields of one edit, without the file. */
export const replacement = {
  oldString: z.string().describe("The text to replace; empty to make a new file"),
  newString: z.string().describe("What stands in its place"),
  replaceAll: z
    .boolean()
    .default(false)
    .describe("Replace every occurrence; default only one, which must be the only one"),
};

/** Reports whether an edit changes anything; one that does not is a mistake. */
export const isChange = ({ oldString, newString }: Pick<Wanted, "oldString" | "newString">) => oldString !== newString;

/** Error for an edit that changes nothing. */
export const noChange = {
  error: "No changes to apply: oldString and newString are identical.",
  path: ["newString"],
};

/** A text after an edit. */
export interface Edited {
  text: string;
  count: number;
  ignoring?: string;
}

/** One edit. */
export interface Wanted {
  oldString: string;
  newString: string;
  replaceAll: boolean;
}

/** Applies one edit; throws `ToolFailure` if it matches nothing or is ambiguous. Edits of one call share their steps. */
export function applyEdit(
  path: string,
  before: Pick<ExistingFile, "text" | "isUtf8"> | undefined,
  { oldString, newString, replaceAll }: Wanted,
  steps: SearchSteps = createSearchSteps(),
): Edited {
  if (oldString === "") {
    if (before === undefined || before.text === "") return { text: newString, count: 1 };
    throw new ToolFailure(`oldString is empty, but ${path} exists. Use the write tool to overwrite it.`);
  }
  if (before === undefined) throw new ToolFailure(`File ${path} not found. Use an empty oldString to make it.`);
  if (before.text === undefined) throw new ToolFailure(`${path} is too large to edit (over 16 MiB).`);
  if (!before.isUtf8) throw new ToolFailure(`${path} is not UTF-8 text, so editing it would damage it.`);
  // Compared with `\n` alone; written back with the line ends of the lines around it.
  const text = before.text.replaceAll("\r\n", "\n");
  const wanted = oldString.replaceAll("\r\n", "\n");
  const replacement = newString.replaceAll("\r\n", "\n");
  const found = findPlaces({ path, text, wanted, replacement, all: replaceAll, steps });
  if (found === undefined) throw notFound(text, wanted, steps);
  const { places, ignoring } = found;
  if (places.length > 1 && !replaceAll) throw ambiguous(text, places);
  steps(places.length * replacement.length);
  return {
    text: splice(before.text, placesIn(before.text, places)),
    count: places.length,
    ...(ignoring !== undefined && { ignoring }),
  };
}

/** Converts places in the text with `\n`, in their order, to places in the file, with its line ends. */
function placesIn(original: string, places: readonly TextPlace[]): readonly TextPlace[] {
  if (!original.includes("\r\n")) return places;
  let removed = 0;
  let next = original.indexOf("\n");
  let hasReturn: boolean | undefined;
  const isReturn = () => original[next - 1] === "\r";
  const isBefore = (at: number) => next !== -1 && next - removed - (isReturn() ? 1 : 0) < at;
  /** Passes the line ends before an offset in the shorter text. */
  const moved = (at: number) => {
    for (; isBefore(at); next = original.indexOf("\n", next + 1)) {
      hasReturn = isReturn();
      removed += hasReturn ? 1 : 0;
    }
    return at + removed;
  };
  return places.map((place) => {
    const start = moved(place.start);
    // The first line end that is replaced decides, otherwise the one before, in the first line the one after.
    const withReturn = isBefore(place.end) ? isReturn() : (hasReturn ?? isReturn());
    const replacement = withReturn ? place.replacement.replaceAll("\n", "\r\n") : place.replacement;
    return { start, end: moved(place.end), replacement };
  });
}

function splice(text: string, places: readonly TextPlace[]): string {
  const parts = places.map(({ start, replacement }, i) => text.slice(places[i - 1]?.end ?? 0, start) + replacement);
  return parts.join("") + text.slice(places.at(-1)?.end ?? 0);
}

function ambiguous(text: string, places: readonly TextPlace[]): ToolFailure {
  const shown = linesAt(
    text,
    places.slice(0, 10).map(({ start }) => start),
  );
  const more = places.length > shown.length ? ", …" : "";
  return new ToolFailure(
    `Found ${places.length} matches for oldString, at lines ${shown.join(", ")}${more}. ` +
      "Provide more surrounding context to make the match unique, or set replaceAll.",
  );
}

function notFound(text: string, wanted: string, steps: SearchSteps): ToolFailure {
  const first =
    wanted
      .split("\n")
      .find((line) => line.trim() !== "")
      ?.trim() ?? "";
  const hint = linesAt(text, first === "" ? [] : findText(text, first, steps, 1)).map(
    (line) => ` Its first line occurs at line ${line}; what follows there differs.`,
  );
  return new ToolFailure(
    `Could not find oldString in the file. It must match exactly, including whitespace, indentation, and line endings.${hint.join()}`,
  );
}

/** Returns the numbers of the lines at offsets, which are in order. */
function linesAt(text: string, offsets: readonly number[]): number[] {
  let line = 1;
  let next = text.indexOf("\n");
  return offsets.map((offset) => {
    for (; next !== -1 && next < offset; next = text.indexOf("\n", next + 1)) line += 1;
    return line;
  });
}

/** A range of a text, `end` exclusive, and its replacement. */
interface TextPlace {
  start: number;
  end: number;
  replacement: string;
}

/** The places of a text, and how they were found. */
interface FoundText {
  places: TextPlace[];
  /** Difference that was ignored, for the model; undefined for an exact match. */
  ignoring?: string;
}

/** A text to find in a file, and its replacement. All texts use `\n`. */
interface Search {
  path: string;
  text: string;
  wanted: string;
  replacement: string;
  /** Finds places that do not overlap; otherwise overlapping places count too, since either may be meant. */
  all: boolean;
  steps: SearchSteps;
}

/**
 * Finds a text in a file, with its replacement. If it does not occur exactly, ignores what models often get wrong: spaces at the
 * ends of lines, typographic characters, and common indentation. Every line is still compared, so no other text is replaced.
 */
function findPlaces(search: Search): FoundText | undefined {
  const { text, wanted, replacement } = search;
  const exact = occurrences(search);
  if (exact.length > 0) return { places: exact };
  const findLines = lineFinder(search);
  const trimmed = findLines(trimEnd, () => replacement);
  if (trimmed.length > 0) return { places: trimmed, ignoring: "spaces at the ends of lines" };
  // Offsets stay the same.
  const typographic = occurrences({ ...search, text: plain(text), wanted: plain(wanted) });
  if (typographic.length > 0) return { places: typographic, ignoring: "typographic characters" };
  const given = indentOf(blockOf(wanted).lines);
  const indented = findLines(trim, (window, block) => {
    const present = indentOf(window);
    const isSame = window.every((line, i) => bare(line, present) === bare(block[i] ?? "", given));
    return isSame ? reindent(replacement, given, present) : undefined;
  });
  return indented.length === 0 ? undefined : { places: indented, ignoring: "how far it is indented" };
}

function occurrences({ text, wanted, replacement, all, steps }: Search): TextPlace[] {
  let free = 0;
  return findText(text, wanted, steps).flatMap((start) => {
    const end = start + wanted.length;
    if (all && start < free) return [];
    free = end;
    return [{ start, end, replacement }];
  });
}

const trim: LineForm = (line) => line.trim();
const trimEnd: LineForm = (line) => line.trimEnd();
const bare = (line: string, indent: string) => line.slice(indent.length).trimEnd();

/** Replaces each typographic character by one plain character. */
export function plain(text: string): string {
  return text
    .replace(/[\u2018\u2019\u201A\u201B]/g, "'")
    .replace(/[\u201C\u201D\u201E\u201F]/g, '"')
    .replace(/[\u2010-\u2015\u2212]/g, "-")
    .replace(/[\u00A0\u2002-\u200A\u202F\u205F\u3000]/g, " ");
}

function reindent(text: string, from: string, to: string): string | undefined {
  const lines = text.split("\n");
  if (!lines.every((line) => line.trim() === "" || line.startsWith(from))) return undefined;
  return lines.map((line) => (line.trim() === "" ? line : to + line.slice(from.length))).join("\n");
}

/** Splits a text into lines. `closed`: it ends with a line end, which is then replaced too. */
function blockOf(text: string): { lines: string[]; closed: boolean } {
  const closed = text.endsWith("\n");
  return { lines: (closed ? text.slice(0, -1) : text).split("\n"), closed };
}

/** Creates the search for whole lines that equal the wanted ones in a form, and for which `replace` returns a replacement. */
function lineFinder({ path, text, wanted, replacement: given, all, steps }: Search) {
  const { lines: block, closed } = blockOf(wanted);
  const lines = text.split("\n");
  const find = createLineSearch(path, lines, steps);
  // The last line of the text has no line end.
  const last = lines.length - block.length - (closed ? 1 : 0);
  return (form: LineForm, replace: (window: string[], block: string[]) => string | undefined): TextPlace[] => {
    if (block.every((line) => line.trim() === "")) return [];
    let [start, passed, free] = [0, 0, 0];
    return find(block, form).flatMap((at) => {
      for (; passed < at; passed++) start += (lines[passed] ?? "").length + 1;
      if (at > last || at < free) return [];
      const window = lines.slice(at, at + block.length);
      const length = window.reduce((sum, line) => sum + line.length + 1, closed ? 0 : -1);
      steps(length + stepsOfLine * window.length + given.length);
      const replacement = replace(window, block);
      if (replacement === undefined) return [];
      if (all) free = at + block.length;
      return [{ start, end: start + length, replacement }];
    });
  };
}

/** Returns the common indentation of all lines that are not empty. */
function indentOf(lines: readonly string[]): string {
  const indents = lines.filter((line) => line.trim() !== "").map((line) => /^[ \t]*/.exec(line)?.[0] ?? "");
  return indents.reduce((shared, indent) => {
    let length = 0;
    while (length < shared.length && shared[length] === indent[length]) length += 1;
    return shared.slice(0, length);
  }, indents[0] ?? "");
}
