import { domainToASCII } from "node:url";

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
