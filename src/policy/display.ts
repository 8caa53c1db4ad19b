import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { hiddenCharacters, visible, visibleLine } from "../core/visible.ts";

/** Checks if a text is displayed as it is, with nothing hidden. */
export function isVisible(text: string): boolean {
  return text.search(hiddenCharacters) === -1 && !text.includes(padding);
}

/** Formats text for a screen: escaped, and wrapped at 160 characters with `↳` before continued lines. Nothing is omitted. */
export function display(text: string): string {
  return visible(text).split("\n").flatMap(wrap).join("\n");
}

/** Formats what is asked for: a command line is a text, anything else a name, of which a line feed or tab is escaped too. */
export function displayPattern(permission: string, pattern: string): string {
  return display(permission === "bash" ? pattern : visibleLine(pattern));
}

/** Describes what a text hides from its reader; empty if nothing. */
export function warningsAbout(text: string): string[] {
  const found = new Set(text.match(hiddenCharacters));
  return [
    ...[...found].map((character) => `it contains ${nameOf(character)}, which is not displayed as it is`),
    ...(text.includes(padding)
      ? [`it contains ${padding.length} spaces in a row, which may push the rest out of sight`]
      : []),
  ];
}

function wrap(line: string): string[] {
  const characters = [...line];
  const first = characters.slice(0, width).join("");
  const rest = Array.from({ length: Math.ceil((characters.length - width) / (width - 2)) }, (_, i) => {
    const from = width + i * (width - 2);
    return `↳ ${characters.slice(from, from + width - 2).join("")}`;
  });
  return [first, ...rest];
}

function nameOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  const kind = kinds.find(([pattern]) => pattern.test(character))?.[1] ?? "an invisible character";
  return `${kind} (U+${code.toString(16).toUpperCase().padStart(4, "0")})`;
}

const kinds = [
  [/\p{Bidi_Control}/u, "a character that changes the direction of text"],
  [/\p{Cc}/u, "a control character"],
  [/\p{Zs}/u, "a space that is not the usual one"],
  [/[\p{Zl}\p{Zp}]/u, "a line separator"],
] as const;

const width = 160;
const padding = " ".repeat(65);

/** Describes the difference between two objects, for people and models: `command: was "make", now "make test"`. */
export function difference(before: JsonObject, after: JsonObject): string {
  const changes = [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => {
    const [was, now] = [toText(before[name]), toText(after[name])];
    return was === now ? [] : [`${visible(name)}: was ${was}, now ${now}`];
  });
  return changes.join("; ");
}

const maxValueLength = 400;

function toText(value: JsonValue | undefined): string {
  if (value === undefined) return "absent";
  const text = visible(JSON.stringify(value));
  if (text.length <= maxValueLength) return text;
  return `${text.slice(0, maxValueLength)}… (${text.length - maxValueLength} more characters)`;
}
