import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import type { ExistingFile } from "./existing-file.ts";

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

/** Applies one edit; throws `ToolFailure` if it matches nothing or is ambiguous. */
export function applyEdit(
  path: string,
  before: Pick<ExistingFile, "text" | "isUtf8"> | undefined,
  { oldString, newString, replaceAll }: Wanted,
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
  const found = findText(text, wanted, newString.replaceAll("\r\n", "\n"), replaceAll);
  if (found === undefined) throw notFound(text, wanted);
  const { places, ignoring } = found;
  if (places.length > 1 && !replaceAll) throw ambiguous(text, places);
  return {
    text: splice(before.text, places.map(placesIn(before.text))),
    count: places.length,
    ...(ignoring !== undefined && { ignoring }),
  };
}

/** Converts offsets in the text with `\n` to offsets in the file. */
function placesIn(original: string): (place: TextPlace) => TextPlace {
  if (!original.includes("\r\n")) return (place) => place;
  // Offset in the shorter text of each line end that lost its \r.
  const ends = [...original.matchAll(/\r\n/g)].map(({ index }, i) => index - i);
  const moved = (at: number) => {
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((ends[middle] ?? 0) < at) low = middle + 1;
      else high = middle;
    }
    return at + low;
  };
  return ({ start, end, replacement }) => ({
    start: moved(start),
    end: moved(end),
    replacement: replacement.replaceAll("\n", "\r\n"),
  });
}

function splice(text: string, places: readonly TextPlace[]): string {
  const parts = places.map(({ start, replacement }, i) => text.slice(places[i - 1]?.end ?? 0, start) + replacement);
  return parts.join("") + text.slice(places.at(-1)?.end ?? 0);
}

function ambiguous(text: string, places: readonly TextPlace[]): ToolFailure {
  const shown = places.slice(0, 10).map(({ start }) => lineAt(text, start));
  const more = places.length > shown.length ? ", …" : "";
  return new ToolFailure(
    `Found ${places.length} matches for oldString, at lines ${shown.join(", ")}${more}. ` +
      "Provide more surrounding context to make the match unique, or set replaceAll.",
  );
}

function notFound(text: string, wanted: string): ToolFailure {
  const first =
    wanted
      .split("\n")
      .find((line) => line.trim() !== "")
      ?.trim() ?? "";
  const at = first === "" ? -1 : text.indexOf(first);
  const hint = at === -1 ? "" : ` Its first line occurs at line ${lineAt(text, at)}; what follows there differs.`;
  return new ToolFailure(
    `Could not find oldString in the file. It must match exactly, including whitespace, indentation, and line endings.${hint}`,
  );
}

function lineAt(text: string, at: number): number {
  return text.slice(0, at).split("\n").length;
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

/**
 * Finds a text in a file, with its replacement. If it does not occur exactly, ignores what models often get wrong: spaces at the
 * ends of lines, typographic characters, and common indentation. Every line is still compared, so no other text is replaced.
 * All texts use `\n`. With `all` places do not overlap; otherwise overlapping places count too, since either may be meant.
 */
function findText(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const exact = occurrences(text, wanted, replacement, all);
  if (exact.length > 0) return { places: exact };
  return (
    findLines(text, wanted, replacement, all) ??
    findPlain(text, wanted, replacement, all) ??
    findIndented(text, wanted, replacement, all)
  );
}

function occurrences(text: string, wanted: string, replacement: string, all: boolean): TextPlace[] {
  const places: TextPlace[] = [];
  for (let start = text.indexOf(wanted); start !== -1; start = text.indexOf(wanted, start + wanted.length)) {
    places.push({ start, end: start + wanted.length, replacement });
  }
  const [only] = places;
  if (all || only === undefined || places.length > 1) return places;
  // Only an overlapping occurrence is left to find.
  const again = text.slice(only.start + 1, only.end + wanted.length - 1).indexOf(wanted);
  if (again === -1) return places;
  const start = only.start + 1 + again;
  return [only, { start, end: start + wanted.length, replacement }];
}

/** Finds text ignoring typographic characters; offsets stay the same. */
function findPlain(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const places = occurrences(plain(text), plain(wanted), replacement, all);
  return places.length === 0 ? undefined : { places, ignoring: "typographic characters" };
}

/** Replaces each typographic character by one plain character. */
export function plain(text: string): string {
  return text
    .replace(/[\u2018\u2019\u201A\u201B]/g, "'")
    .replace(/[\u201C\u201D\u201E\u201F]/g, '"')
    .replace(/[\u2010-\u2015\u2212]/g, "-")
    .replace(/[\u00A0\u2002-\u200A\u202F\u205F\u3000]/g, " ");
}

/** Finds whole lines, ignoring spaces at their ends. */
function findLines(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const block = blockOf(wanted);
  const lines = block.lines.map((line) => line.trimEnd());
  const places = windows(text, block, all, (window) =>
    window.every((line, i) => line.trimEnd() === lines[i]) ? replacement : undefined,
  );
  return places.length === 0 ? undefined : { places, ignoring: "spaces at the ends of lines" };
}

/** Finds whole lines with more or less common indentation; indents the replacement like them. */
function findIndented(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const block = blockOf(wanted);
  const given = indentOf(block.lines);
  const core = block.lines.map((line) => line.slice(given.length).trimEnd());
  const places = windows(text, block, all, (window) => {
    const present = indentOf(window);
    if (!window.every((line, i) => line.slice(present.length).trimEnd() === core[i])) return undefined;
    return reindent(replacement, given, present);
  });
  return places.length === 0 ? undefined : { places, ignoring: "how far it is indented" };
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

/** Finds runs of as many lines as the block has, for which `replace` returns a replacement. */
function windows(
  text: string,
  { lines: wanted, closed }: { lines: string[]; closed: boolean },
  all: boolean,
  replace: (window: string[]) => string | undefined,
): TextPlace[] {
  const lines = text.split("\n");
  const first = wanted[0]?.trim();
  const places: TextPlace[] = [];
  if (wanted.every((line) => line.trim() === "")) return places;
  // The last line of the text has no line end.
  const last = lines.length - wanted.length - (closed ? 1 : 0);
  let start = 0;
  for (let i = 0, free = 0; i <= last; i++) {
    const window = i >= free && lines[i]?.trim() === first ? lines.slice(i, i + wanted.length) : [];
    const replacement = window.length === 0 ? undefined : replace(window);
    if (replacement !== undefined) {
      const length = window.reduce((sum, line) => sum + line.length + 1, closed ? 0 : -1);
      places.push({ start, end: start + length, replacement });
      free = i + (all ? wanted.length : 1);
    }
    start += (lines[i]?.length ?? 0) + 1;
  }
  return places;
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
