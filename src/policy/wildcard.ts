/** Options of comparing a text with a pattern. */
export interface WildcardOptions {
  /** Treats upper and lower case as equal. */
  ignoreCase?: boolean;
  /** Treats backslashes as slashes, in the text and in the pattern. */
  slashes?: boolean;
}

/** Checks if a whole text matches a pattern; see `matcher`. */
export function wildcard(text: string, pattern: string, options: WildcardOptions = {}): boolean {
  const form = (value: string) => {
    const path = options.slashes ? toSlashes(value) : value;
    return options.ignoreCase ? foldCase(path) : path;
  };
  return matcher(form(pattern))(form(text));
}

/**
 * Compiles a pattern: `*` is any run of characters, also `/` and line ends, `?` is one (UTF-16 unit), a trailing ` *` may
 * be absent, any other character stands for itself. Runs in O(length of the text × (wildcards + 1)) for every pattern.
 */
export function matcher(pattern: string): (text: string) => boolean {
  if (pattern === "*") return () => true;
  if (isLiteral(pattern)) return (text) => text === pattern;
  const whole = inOrder(pattern.split("*"));
  if (!pattern.endsWith(" *")) return whole;
  const bare = pattern.slice(0, -2);
  if (isLiteral(bare))
    return (text) => text.startsWith(bare) && (text.length === bare.length || text[bare.length] === " ");
  const withoutTail = inOrder(bare.split("*"));
  return (text) => whole(text) || withoutTail(text);
}

/** Returns how often a matcher of a pattern may look at each character of a text; 0 if it compares only the ends. */
export function scansOf(pattern: string): number {
  const pieces = pattern.replace(/ \*$/, "*").split("*");
  if (pieces.length < 3) return 0;
  const runs = pieces.slice(1, -1).join("*").split("?").length;
  return pattern.endsWith(" *") ? 2 * runs : runs;
}

/** Checks if a pattern has no wildcard. */
export function isLiteral(pattern: string): boolean {
  return !pattern.includes("*") && !pattern.includes("?");
}

/** Replaces backslashes with slashes. */
export function toSlashes(text: string): string {
  return text.replaceAll("\\", "/");
}

/** Folds case, so that texts that differ only in case become equal. Keeps the length, so that `?` still matches one character. */
export function foldCase(text: string): string {
  return beyondPrintableAscii.test(text) ? text.split("").map(foldUnit).join("") : text.toLowerCase();
}

const beyondPrintableAscii = /[^ -~]/;

function foldUnit(unit: string): string {
  const folded = unit.toUpperCase().toLowerCase();
  return folded.length === 1 ? folded : unit;
}

/** Matches the pieces between stars: the first at the start, the last at the end, the others at their earliest position. */
function inOrder(pieces: readonly string[]): (text: string) => boolean {
  const first = pieces[0] ?? "";
  if (pieces.length === 1) return (text) => text.length === first.length && isAt(text, first, 0);
  const last = pieces.at(-1) ?? "";
  const middle = pieces.slice(1, -1).map(searchFor);
  return (text) => {
    const end = text.length - last.length;
    if (first.length > end || !isAt(text, first, 0) || !isAt(text, last, end)) return false;
    let from = first.length;
    for (const search of middle) {
      from = search(text, from);
      if (from === -1 || from > end) return false;
    }
    return true;
  };
}

function isAt(text: string, piece: string, at: number): boolean {
  if (!piece.includes("?")) return text.startsWith(piece, at);
  for (let i = 0; i < piece.length; i++) if (piece[i] !== "?" && piece[i] !== text[at + i]) return false;
  return true;
}

/** Finds the end of a piece's earliest match, or -1. The scan of each literal run advances through the text once, until all agree. */
function searchFor(piece: string): (text: string, from: number) => number {
  const runs = [...piece.matchAll(/[^?]+/g)].map(({ 0: literal, index }) => ({
    offset: index,
    scan: scanFor(literal),
  }));
  return (text, from) => {
    const scans = runs.map(({ offset, scan }) => ({ offset, next: scan(text) }));
    for (let at = from; ; ) {
      const before = at;
      for (const { offset, next } of scans) {
        const found = next(at + offset);
        if (found === -1) return -1;
        at = found - offset;
      }
      if (at === before) return at + piece.length;
    }
  };
}

/** Scans a text for a literal (Knuth–Morris–Pratt), forwards only: `from` never decreases. */
function scanFor(literal: string): (text: string) => (from: number) => number {
  let known: readonly number[] | undefined;
  return (text) => {
    known ??= fallbacksOf(literal);
    return scan(literal, known, text);
  };
}

function scan(literal: string, fallback: readonly number[], text: string): (from: number) => number {
  let read = 0;
  let matched = 0;
  let found = -1;
  return (from) => {
    if (from > read) [read, matched] = [from, 0];
    while (found < from) {
      if (read >= text.length) return -1;
      matched = extend(literal, fallback, matched, text[read++]);
      if (matched < literal.length) continue;
      found = read - literal.length;
      matched = fallback[matched - 1] ?? 0;
    }
    return found;
  };
}

/** Returns, for each beginning of a literal, the length of the longest shorter one with which it ends. */
function fallbacksOf(literal: string): readonly number[] {
  const fallback: number[] = [];
  for (let i = 0; i < literal.length; i++)
    fallback.push(i === 0 ? 0 : extend(literal, fallback, fallback[i - 1] ?? 0, literal[i]));
  return fallback;
}

function extend(literal: string, fallback: readonly number[], matched: number, unit: string | undefined): number {
  let length = matched;
  while (length > 0 && literal[length] !== unit) length = fallback[length - 1] ?? 0;
  return literal[length] === unit ? length + 1 : 0;
}
