import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** Text as a person may be shown it: what is invisible, or changes what stands around it, is written out as `\u{…}`. */
export function visible(text: string): string {
  return text.replaceAll(hidden, (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`);
}

/** Whether a person sees all of a text as it is. */
export function isVisible(text: string): boolean {
  return text.search(hidden) === -1 && !text.includes(padding);
}

/** A text for a screen: visible, and with lines of at most 160 characters, of which the rest follows behind `↳`. Nothing is left out. */
export function display(text: string): string {
  return visible(text).split("\n").flatMap(wrap).join("\n");
}

/** What a person would not see in a text, in words; none if they see all of it. */
export function warningsAbout(text: string): string[] {
  const found = new Set(text.match(hidden));
  return [
    ...[...found].map((character) => `it holds ${nameOf(character)}, which is not seen as it is`),
    ...(text.includes(padding)
      ? [`it holds ${padding.length} spaces in a row, which may push the rest out of sight`]
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

/** How one object differs from another, for people and models: `command: was "make", now "make test"`. */
export function difference(before: JsonObject, after: JsonObject): string {
  const changes = [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => {
    const [was, now] = [written(before[name]), written(after[name])];
    return was === now ? [] : [`${visible(name)}: was ${was}, now ${now}`];
  });
  return changes.join("; ");
}

const maxValueLength = 400;

function written(value: JsonValue | undefined): string {
  if (value === undefined) return "absent";
  const text = visible(JSON.stringify(value));
  if (text.length <= maxValueLength) return text;
  return `${text.slice(0, maxValueLength)}… (${text.length - maxValueLength} more characters)`;
}

/** Control (but tab and newline), format and bidi characters, lone surrogates, separators, what is drawn as nothing, odd spaces. */
const hidden = /(?![\t\n])[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/gu;
