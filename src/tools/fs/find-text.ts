/** A range of a text, `end` exclusive, and its replacement. */
export interface TextPlace {
  start: number;
  end: number;
  replacement: string;
}

/** The places of a text, and how they were found. */
export interface FoundText {
  places: TextPlace[];
  /** Difference that was ignored, for the model; undefined for an exact match. */
  ignoring?: string;
}

/**
 * Finds a text in a file, with its replacement. If it does not occur exactly, ignores what models often get wrong: spaces at the
 * ends of lines, typographic characters, and common indentation. Every line is still compared, so no other text is replaced.
 * All texts use `\n`. With `all` places do not overlap; otherwise overlapping places count too, since either may be meant.
 */
export function findText(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
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
