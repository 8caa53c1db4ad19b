import { domainToASCII } from "node:url";
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

/** Warns about characters that look like others in ASCII: a name may not be the one that its reader takes it for. */
export function lookAlikeWarnings(text: string): string[] {
  if (/^[\0-\x7f]*$/.test(text)) return [];
  const found = new Map<string, string>();
  const add = (character: string, name?: string, isHost = false) => {
    const ascii = asciiFor(character);
    if (ascii === undefined || found.has(character)) return;
    const looks = `it contains ${JSON.stringify(character)} (${scriptOf(character)}U+${codeOf(character)}), which looks like ${JSON.stringify(ascii)}`;
    found.set(character, name === undefined ? looks : `${looks}: ${distinguished(name, character, isHost)}`);
  };
  for (const { 0: name, index } of text.matchAll(/[\p{L}\p{N}\p{M}_.-]+/gu)) {
    const isHost = /(\/\/|@)$/.test(text.slice(Math.max(0, index - 2), index));
    for (const [word] of name.matchAll(/[\p{L}\p{N}\p{M}_]+/gu)) {
      const isSuspicious = /[A-Za-z]/.test(word) || [...word].every((character) => asciiFor(character) !== undefined);
      for (const character of isSuspicious ? word : "") add(character, name, isHost);
    }
  }
  for (const [character] of text.matchAll(/[^\p{L}\p{N}\p{M}\0-\x7f]/gu)) add(character);
  // Other scripts write with marks; on an ASCII character, or on nothing, they make it look like another one.
  const marks = new Set([...text.matchAll(/(?:^|[\0-\x7f])(\p{M}+)/gu)].flatMap(([, run = ""]) => [...run]));
  return [
    ...found.values(),
    ...[...marks].map(
      (mark) =>
        `it contains a combining mark (U+${codeOf(mark)}), which makes the character before it look like another`,
    ),
    ...(text.includes("\ufffd") ? ["it contains U+FFFD, which stands for bytes that are no text"] : []),
  ];
}

/** Distinguishes a name from the one that it looks like: all but ASCII is escaped, and of a host the name that is looked up is added. */
function distinguished(name: string, character: string, isHost: boolean): string {
  const at = name.indexOf(character);
  const shown = [...name.slice(Math.max(0, at - 40), at + 40)];
  const real = shown.map((one) => (one > "\x7f" ? `\\u{${codeOf(one).toLowerCase().replace(/^0+/, "")}}` : one));
  const host = isHost ? domainToASCII(name) : "";
  const lookedUp = host.includes("xn--") && host.length < 80 ? `, as a host it is ${host}` : "";
  return `"${real.join("")}" is not "${shown.map((one) => asciiFor(one) ?? one).join("")}"${lookedUp}`;
}

/** The name of the script of a letter, if it is one whose letters are often taken for Latin ones. */
function scriptOf(character: string): string {
  const name = ["Cyrillic", "Greek", "Armenian", "Cherokee"].find((script) =>
    new RegExp(`\\p{Script=${script}}`, "u").test(character),
  );
  return name === undefined ? "" : `${name}, `;
}

function asciiFor(character: string): string | undefined {
  if (character <= "\x7f") return undefined;
  const known = lookAlikes.get(character);
  if (known !== undefined) return known;
  // Fullwidth, mathematical and similar forms; a form of several characters, such as "…", is no look-alike.
  const plain = character.normalize("NFKC");
  return /^[!-~]$/.test(plain) ? plain : undefined;
}

function codeOf(character: string): string {
  return (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
}

/** ASCII characters, each with those of other scripts that look like it in common typefaces (from the confusables of UTS 39). */
const lookAlikes: ReadonlyMap<string, string> = new Map(
  `
   aаɑα bЬЪƅ cсϲᴄⅽ dԁժɗ eеҽє fſϝ gɡցğ hһհн iіıɩι jјϳ kкκ lӏǀاꓲ mмᴍ nոռη oоοօσ᧐૦ pрρ qԛզ rгᴦꭇ sѕꜱ tтτ
   uսυʋ vѵνᴠ wԝաѡᴡ xхχ yуүγ zᴢ AАΑᎪ BВΒᏴ CСϹᏟ DᎠ EЕΕᎬ FϜ GԌᏀ HНΗᎻ IІΙӀ JЈᎫ KКΚᏦ LᏞ MМΜᎷ NΝ OОΟՕ PРΡᏢ RᏒ
   SЅՏᏚ TТΤᎢ UՍ VѴᏙ WԜᎳ XХΧ YҮΥ ZΖᏃ 0౦೦० 3ЗӠȜ 6б -‐‑‒−﹣ /⁄∕⧸╱ \\∖⧵﹨ .․· :꞉∶։׃ ;; ,‚ |∣⼁ 'ʹʼˈ′ "ʺ″ <‹˂
   >›˃ ~˜∼ *∗⁎ &ꝸ =═゠ !ǃ _ˍ ^˄ \`ˋ
  `
    .split(/\s+/)
    .flatMap(([ascii = "", ...others]) => others.map((character) => [character, ascii] as const)),
);
