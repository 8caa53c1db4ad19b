import { ToolFailure } from "../../tool/errors.ts";

const maxAlternatives = 64;
/** Length of the longest path that the system takes. */
const maxLength = 4_096;
/** Characters of a pattern and of all that come of its braces. */
const maxExpandedLength = 65_536;

/** One alternative of a glob after its braces are expanded. */
export interface GlobPattern {
  /** The path before the first wildcard, as written; empty if the pattern starts with a wildcard. */
  base: string;
  /** The segments after it; a pattern without a slash matches at any depth. */
  rest: readonly Segment[];
}

/** The pattern of one part of a path, or `**` for any number of parts. */
interface Segment {
  text: string;
  tokens: readonly Token[];
}

/** Parses a glob: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of directories; `\` escapes the next character. */
export function readGlob(glob: string): GlobPattern[] {
  if (glob.length > maxLength) {
    throw new ToolFailure(`The pattern has ${glob.length} characters, at most ${maxLength} can be read. Shorten it.`);
  }
  return alternatives(glob).map((pattern) => {
    const segments = pattern.split("/");
    if (segments.length === 1) return { base: "", rest: [segment("**"), segment(pattern)] };
    const last = segments.pop() || "**";
    // `**` at the end matches files below a directory, not the directory itself.
    const name = last === "**" ? ["**", "*"] : [last];
    const wild = segments.findIndex(hasWildcard);
    const fixed = wild === -1 ? segments : segments.slice(0, wild);
    const rest = [...segments.slice(fixed.length), ...name].filter((part) => part !== "." && part !== "");
    if (rest.includes("..")) {
      throw new ToolFailure(
        `${glob} has \`..\` after a wildcard, which may lead anywhere. Name the directory as path.`,
      );
    }
    const base = fixed.map(unescaped).join("/");
    return { base: base === "" && fixed.length > 0 ? "/" : base, rest: rest.map(segment) };
  });
}

/** Creates the test for paths below the base, of files that have passed `nameFilter`. */
export function passedGlob(patterns: readonly GlobPattern[]): (path: string) => boolean {
  const [{ rest } = { rest: [] }, ...others] = patterns;
  const isName = others.length === 0 && rest.length === 2 && rest.slice(0, 1).every(isAnyDirectories);
  return isName ? () => true : (path) => patterns.some((pattern) => meetsGlob(pattern, path));
}

function meetsGlob({ rest }: GlobPattern, path: string): boolean {
  return meets(rest, path.split("/"), isAnyDirectories, meetsSegment);
}

/** Matches a path against a pattern with its base. */
export function meetsBelow(pattern: GlobPattern, path: string): boolean {
  const base = pattern.base
    .split("/")
    .filter((part) => part !== "" && part !== ".")
    .join("/");
  if (base === "") return meetsGlob(pattern, path);
  return path.startsWith(`${base}/`) && meetsGlob(pattern, path.slice(base.length + 1));
}

/** Makes the arguments with which ripgrep leaves out files whose names match no pattern, and still applies ignore rules. */
export function nameFilter(patterns: readonly GlobPattern[]): string[] {
  const names = patterns.map(({ rest }) => rest.at(-1)?.text ?? "*");
  const globs = names.map((name) =>
    name.replace(/\\.|[{}]/gs, (found) => (found.length > 1 ? found : `\\${found}`)).replace(/^include:/, "include[:]"),
  );
  return [...globs.map((name) => `--type-add=wanted:${name}`), "--type=wanted"];
}

/** Matches items against patterns, some of which match any run; backtracks to the last run if the rest does not match. */
function meets<Pattern, Item>(
  patterns: ArrayLike<Pattern>,
  items: ArrayLike<Item>,
  isRun: (pattern: Pattern) => boolean,
  fits: (pattern: Pattern, item: Item) => boolean,
): boolean {
  let [p, i] = [0, 0];
  let back: { p: number; i: number } | undefined;
  for (;;) {
    const pattern = patterns[p];
    const item = items[i];
    if (pattern !== undefined && isRun(pattern)) {
      p += 1;
      back = { p, i };
    } else if (item === undefined) {
      if (pattern === undefined) return true;
      return false;
    } else if (pattern !== undefined && fits(pattern, item)) {
      p += 1;
      i += 1;
    } else if (back) {
      back.i += 1;
      ({ p, i } = back);
    } else return false;
  }
}

const segment = (text: string): Segment => ({ text, tokens: tokensOf(text) });
const isAnyDirectories = ({ text }: Segment) => text === "**";

function meetsSegment({ tokens }: Segment, name: string): boolean {
  return meets(tokens, /^[ -~]*$/.test(name) ? name : Array.from(name), isAnyRun, (token, character) =>
    token(character),
  );
}

type Token = (character: string) => boolean;
const anyRun: Token = () => true;
const isAnyRun = (token: Token) => token === anyRun;
const anyOne: Token = () => true;

function tokensOf(pattern: string): Token[] {
  const tokens: Token[] = [];
  // A longer class is none: each `[` that is not closed would be followed to the end of the pattern.
  const parts = pattern.matchAll(/\\(.)|(\*+)|(\?)|\[([!^]?)(\]?[^\]]{0,255})\]|(.)/gsu);
  for (const [, escaped, run, one, negated, inner, plain] of parts) {
    if (run !== undefined) tokens.push(anyRun);
    else if (one !== undefined) tokens.push(anyOne);
    else if (inner !== undefined) tokens.push(classOf(inner, negated !== ""));
    else tokens.push((character) => character === (escaped ?? plain));
  }
  return tokens;
}

function classOf(inner: string, negated: boolean): Token {
  const ranges = [...inner.matchAll(/(.)-(.)|(.)/gsu)].map(
    ([, from, to, one]) => [from ?? one ?? "", to ?? one ?? ""] as const,
  );
  return (character) => ranges.some(([from, to]) => from <= character && character <= to) !== negated;
}

const hasWildcard = (segment: string) => /(^|[^\\])(\\\\)*[*?[]/.test(segment);
const unescaped = (segment: string) => segment.replace(/\\(.)/g, "$1");

/** Expands the braces of a pattern, first ones first. */
function alternatives(glob: string): string[] {
  const done: string[] = [];
  const ahead = [glob];
  let length = 0;
  while (ahead.length > 0) {
    const next = ahead.shift() ?? "";
    length += next.length;
    if (done.length + ahead.length >= maxAlternatives || length > maxExpandedLength) {
      throw new ToolFailure(
        `The pattern expands to more than ${maxAlternatives} alternatives, or ${maxExpandedLength} characters. Use fewer braces.`,
      );
    }
    const braces = firstBraces(next);
    if (braces === undefined) done.push(next);
    else ahead.push(...braces.inner.map((inner) => next.slice(0, braces.start) + inner + next.slice(braces.end)));
  }
  return done;
}

/** Finds the first outermost braces: their range, and the alternatives between their commas. */
function firstBraces(text: string): { start: number; end: number; inner: string[] } | undefined {
  let depth = 0;
  let start = -1;
  let from = 0;
  const inner: string[] = [];
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === "\\") i += 1;
    else if (character === "{") {
      if (depth === 0) [start, from] = [i, i + 1];
      depth += 1;
    } else if (character === "," && depth === 1) {
      inner.push(text.slice(from, i));
      from = i + 1;
    } else if (character === "}" && depth > 0) {
      depth -= 1;
      if (depth === 0) return { start, end: i + 1, inner: [...inner, text.slice(from, i)] };
    }
  }
  if (depth > 0) throw new ToolFailure(`The pattern ${text} has a brace that is not closed. Close it, or write \\{.`);
  return undefined;
}
