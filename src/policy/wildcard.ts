/** How a text is compared with a pattern. */
export interface WildcardOptions {
  /** Upper and lower case are the same. */
  ignoreCase?: boolean;
  /** A backslash counts as a slash, in the text and in the pattern. */
  slashes?: boolean;
}

/** Whether a text matches a pattern from its first to its last character; see `matcher`. */
export function wildcard(text: string, pattern: string, options: WildcardOptions = {}): boolean {
  const form = (value: string) => {
    const path = options.slashes ? toSlashes(value) : value;
    return options.ignoreCase ? foldCase(path) : path;
  };
  return matcher(form(pattern))(form(text));
}

/**
 * Compiles a pattern: `*` is any run of characters, also `/` and line ends, `?` is one (UTF-16 unit), a trailing ` *` may
 * be absent, all else stands for itself. No pattern takes longer than the text's length times one more than its wildcards.
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

/** Whether a pattern matches only its own text. */
export function isLiteral(pattern: string): boolean {
  return !pattern.includes("*") && !pattern.includes("?");
}

/** Turns every backslash into a slash. */
export function toSlashes(text: string): string {
  return text.replaceAll("\\", "/");
}

/** Makes texts equal that differ in case only. It keeps the length, so that `?` still stands for one character. */
export function foldCase(text: string): string {
  return beyondPrintableAscii.test(text) ? text.split("").map(foldUnit).join("") : text.toLowerCase();
}

const beyondPrintableAscii = /[^ -~]/;

function foldUnit(unit: string): string {
  const folded = unit.toUpperCase().toLowerCase();
  return folded.length === 1 ? folded : unit;
}

/** Matches the pieces between stars: the first at the start, the last at the end, the others at their earliest place. */
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

/** Finds the end of a piece's earliest place, or -1. Each run of literals goes through the text once, until all agree. */
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

/** Scans a text for a literal by Knuth, Morris and Pratt, forwards only: `from` never falls. */
function scanFor(literal: string): (text: string) => (from: number) => number {
  const fallback: number[] = [];
  const extend = (matched: number, unit: string | undefined) => {
    let length = matched;
    while (length > 0 && literal[length] !== unit) length = fallback[length - 1] ?? 0;
    return literal[length] === unit ? length + 1 : 0;
  };
  for (let i = 0; i < literal.length; i++) fallback.push(i === 0 ? 0 : extend(fallback[i - 1] ?? 0, literal[i]));
  return (text) => {
    let read = 0;
    let matched = 0;
    let found = -1;
    return (from) => {
      if (from > read) [read, matched] = [from, 0];
      while (found < from) {
        if (read >= text.length) return -1;
        matched = extend(matched, text[read++]);
        if (matched < literal.length) continue;
        found = read - literal.length;
        matched = fallback[matched - 1] ?? 0;
      }
      return found;
    };
  };
}
