import { existsSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { DescEnum } from "@bufbuild/protobuf";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { type NamedPlace, namedPlacesOf, placeText } from "../../view/places.ts";
import { enumWord, shellCommand } from "../../view/words.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

export { durationOf, momentOf, sizeOf } from "../../view/quantities.ts";

/** The name of an enum value in words: `PERMISSION_OUTCOME_REJECT` is `reject`. */
export function wordOf({ values }: DescEnum, value: number): string {
  return enumWord(Object.fromEntries(values.map(({ localName, number }) => [localName, number])), value);
}

/** A command line that can be pasted into a shell and is harmless to the terminal. */
export function commandLine(...words: readonly string[]): string {
  return terminalSafe(shellCommand(words));
}

/** The link that opens the console and signs in with a one-time code; the fragment does not leave the browser. */
export function signInLink(url: string, code: string): string {
  return `${url}/#code=${code}`;
}

/** Makes the places in an output links to files of this machine. The output is safe for a terminal already. */
export function linkPlaces(output: string, part: ToolPart): string {
  const { directory, places } = namedPlacesOf(part);
  let at = 0;
  let linked = "";
  // The places have the order of the output, so each is searched behind the one before it.
  for (const place of places) {
    const found = firstOf(output, namesOf(place), at);
    const address = addressOf(directory, place);
    if (found === undefined || address === undefined) continue;
    linked += `${output.slice(at, found.start)}${link(address, found.name)}`;
    at = found.start + found.name.length;
  }
  return linked + output.slice(at);
}

/** The forms in which tools name a place: with its path, in a list about one file, and as JSON. */
const namesOf = (place: NamedPlace) =>
  [placeText(place), `at ${place.line}:${place.column}`, `"path": ${JSON.stringify(place.path)}`].map((name) =>
    terminalSafe(name),
  );

function firstOf(output: string, names: readonly string[], from: number): { start: number; name: string } | undefined {
  for (const name of names) {
    // A longer column is another place.
    const search = new RegExp(`${RegExp.escape(name)}(?!\\d)`, "g");
    search.lastIndex = from;
    const start = search.exec(output)?.index;
    if (start !== undefined) return { start, name };
  }
  return undefined;
}

function addressOf(directory: string, { path, line }: NamedPlace): string | undefined {
  const file = join(directory, path);
  if (!existsSync(file)) return undefined;
  const { href } = pathToFileURL(file);
  return `${href.replace("file://", `file://${hostname()}`)}#${line}`;
}

/** A hyperlink of terminals (OSC 8); those that know none show the text alone. */
const link = (address: string, text: string) => `\x1b]8;;${address}\x1b\\${text}\x1b]8;;\x1b\\`;
