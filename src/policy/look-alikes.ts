/** Warns about characters that look like others in ASCII: a name may not be the one that its reader takes it for. */
export function lookAlikeWarnings(text: string): string[] {
  if (/^[\0-\x7f]*$/.test(text)) return [];
  const found = new Map<string, LookAlike>();
  for (const [word] of text.matchAll(/[\p{L}\p{N}\p{M}_]+/gu)) {
    const isSuspicious = /[A-Za-z]/.test(word) || [...word].every((character) => asciiFor(character) !== undefined);
    for (const character of isSuspicious ? word : "") add(found, character, word);
  }
  for (const [character] of text.matchAll(/[^\p{L}\p{N}\p{M}\0-\x7f]/gu)) add(found, character);
  // Other scripts write with marks; on an ASCII character, or on nothing, they make it look like another one.
  const marks = new Set([...text.matchAll(/(?:^|[\0-\x7f])(\p{M}+)/gu)].flatMap(([, run = ""]) => [...run]));
  return [
    ...[...found].map(
      ([character, { ascii, word }]) =>
        `it contains ${JSON.stringify(character)} (U+${codeOf(character)}), which looks like ${JSON.stringify(ascii)}${word === undefined ? "" : `, in "${escaped(word, character)}"`}`,
    ),
    ...[...marks].map(
      (mark) =>
        `it contains a combining mark (U+${codeOf(mark)}), which makes the character before it look like another`,
    ),
    ...(text.includes("\ufffd") ? ["it contains U+FFFD, which stands for bytes that are no text"] : []),
  ];
}

/** The ASCII that a character looks like, and the first word with it. */
interface LookAlike {
  ascii: string;
  word?: string | undefined;
}

function add(found: Map<string, LookAlike>, character: string, word?: string): void {
  const ascii = asciiFor(character);
  if (ascii !== undefined && !found.has(character)) found.set(character, { ascii, word });
}

/** The word around a character, with all but ASCII escaped, so that a reader sees where it stands. */
function escaped(word: string, character: string): string {
  const at = word.indexOf(character);
  const shown = word.slice(Math.max(0, at - 20), at + 20);
  return shown.replace(/[^\0-\x7f]/gu, (one) => `\\u{${codeOf(one).toLowerCase().replace(/^0+/, "")}}`);
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
  [
    "aаɑα",
    "bЬЪƅ",
    "cсϲᴄⅽ",
    "dԁժɗ",
    "eеҽє",
    "fſϝ",
    "gɡցğ",
    "hһհн",
    "iіıɩι",
    "jјϳ",
    "kкκ",
    "lӏǀاꓲ",
    "mмᴍ",
    "nոռη",
    "oоοօσ᧐૦",
    "pрρ",
    "qԛզ",
    "rгᴦꭇ",
    "sѕꜱ",
    "tтτ",
    "uսυʋ",
    "vѵνᴠ",
    "wԝաѡᴡ",
    "xхχ",
    "yуүγ",
    "zᴢ",
    "AАΑᎪ",
    "BВΒᏴ",
    "CСϹᏟ",
    "DᎠ",
    "EЕΕᎬ",
    "FϜ",
    "GԌᏀ",
    "HНΗᎻ",
    "IІΙӀ",
    "JЈᎫ",
    "KКΚᏦ",
    "LᏞ",
    "MМΜᎷ",
    "NΝ",
    "OОΟՕ",
    "PРΡᏢ",
    "RᏒ",
    "SЅՏᏚ",
    "TТΤᎢ",
    "UՍ",
    "VѴᏙ",
    "WԜᎳ",
    "XХΧ",
    "YҮΥ",
    "ZΖᏃ",
    "0౦೦०",
    "3ЗӠȜ",
    "6б",
    "-‐‑‒−﹣",
    "/⁄∕⧸╱",
    "\\∖⧵﹨",
    ".․·",
    ":꞉∶։׃",
    ";;",
    ",‚",
    "|∣⼁",
    "'ʹʼˈ′",
    '"ʺ″',
    "<‹˂",
    ">›˃",
    "~˜∼",
    "*∗⁎",
    "&ꝸ",
    "=═゠",
    "!ǃ",
    "_ˍ",
    "^˄",
    "`ˋ",
  ].flatMap((group) => {
    const [ascii = "", ...others] = group;
    return others.map((character) => [character, ascii] as const);
  }),
);
