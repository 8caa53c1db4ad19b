import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import type { ExistingFile } from "./existing-file.ts";
import { findText, type TextPlace } from "./find-text.ts";

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
