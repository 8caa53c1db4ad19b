/** Where a text stands in a file, from its first character to the one behind its last, and what is to stand there. */
export interface TextPlace {
  start: number;
  end: number;
  replacement: string;
}

/** Where a text was found. */
export interface FoundText {
  places: TextPlace[];
  /** What was not compared, for the model; undefined if all of it was the same. */
  ignoring?: string;
}

/**
 * Finds a text in a file and says what replaces it. First as it is; where it does not occur, without what models get wrong
 * and nobody means: spaces at the ends of lines, typographic characters, and how far the whole of it is indented. These
 * compare every line of it, so nothing is replaced that was not given. All texts have `\n` for line ends. `all` are to be
 * replaced, so places do not overlap; else a place that overlaps the one before it counts as well, since either may be meant.
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
  // One further away would have been found.
  const again = text.slice(only.start + 1, only.end + wanted.length - 1).indexOf(wanted);
  if (again === -1) return places;
  const start = only.start + 1 + again;
  return [only, { start, end: start + wanted.length, replacement }];
}

/** With typographic characters written plainly, one for one, so that places stay the same. */
function findPlain(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const places = occurrences(plain(text), plain(wanted), replacement, all);
  return places.length === 0 ? undefined : { places, ignoring: "typographic characters" };
}

/** A text with typographic characters written plainly, one for one. */
export function plain(text: string): string {
  return text
    .replace(/[\u2018\u2019\u201A\u201B]/g, "'")
    .replace(/[\u201C\u201D\u201E\u201F]/g, '"')
    .replace(/[\u2010-\u2015\u2212]/g, "-")
    .replace(/[\u00A0\u2002-\u200A\u202F\u205F\u3000]/g, " ");
}

/** As whole lines, spaces at their ends aside. */
function findLines(text: string, wanted: string, replacement: string, all: boolean): FoundText | undefined {
  const block = blockOf(wanted);
  const lines = block.lines.map((line) => line.trimEnd());
  const places = windows(text, block, all, (window) =>
    window.every((line, i) => line.trimEnd() === lines[i]) ? replacement : undefined,
  );
  return places.length === 0 ? undefined : { places, ignoring: "spaces at the ends of lines" };
}

/** As whole lines that are all indented further, or all less; what replaces them is indented as they are. */
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

/** A text as lines, and whether it ends with a line end, which then belongs to what is replaced. */
function blockOf(text: string): { lines: string[]; closed: boolean } {
  const closed = text.endsWith("\n");
  return { lines: (closed ? text.slice(0, -1) : text).split("\n"), closed };
}

/** The places of as many lines as a block has, for which `replace` says what is to stand there. */
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
  // The text's last line has no end.
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

/** What all lines but empty ones begin with. */
function indentOf(lines: readonly string[]): string {
  const indents = lines.filter((line) => line.trim() !== "").map((line) => /^[ \t]*/.exec(line)?.[0] ?? "");
  return indents.reduce((shared, indent) => {
    let length = 0;
    while (length < shared.length && shared[length] === indent[length]) length += 1;
    return shared.slice(0, length);
  }, indents[0] ?? "");
}
