import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import type { ExistingFile } from "./change-file.ts";
import { findText, type TextPlace } from "./find-text.ts";

/** The input of one edit, without the file. */
export const replacement = {
  oldString: z.string().describe("The text to replace; empty to make a new file"),
  newString: z.string().describe("What stands in its place"),
  replaceAll: z
    .boolean()
    .default(false)
    .describe("Replace every occurrence; default only one, which must be the only one"),
};

/** Whether an edit changes anything; one that does not is a mistake. */
export const isChange = ({ oldString, newString }: Pick<Wanted, "oldString" | "newString">) => oldString !== newString;

/** What to say of one that does not. */
export const noChange = {
  error: "No changes to apply: oldString and newString are identical.",
  path: ["newString"],
};

/** What an edit makes of a text. */
export interface Edited {
  text: string;
  count: number;
  ignoring?: string;
}

/** What an edit replaces by what. */
export interface Wanted {
  oldString: string;
  newString: string;
  replaceAll: boolean;
}

/** Makes one edit; throws `ToolFailure` if it is not clear what it means. */
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
  // Compared with one kind of line end, written back with that of the lines they stand in.
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

/** Turns places of the text with `\n` into those of the file. */
function placesIn(original: string): (place: TextPlace) => TextPlace {
  if (!original.includes("\r\n")) return (place) => place;
  // For each line end that lost its \r, where it stands in the shorter text.
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
  const kept = places.map(({ start, replacement }, i) => text.slice(places[i - 1]?.end ?? 0, start) + replacement);
  return kept.join("") + text.slice(places.at(-1)?.end ?? 0);
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
