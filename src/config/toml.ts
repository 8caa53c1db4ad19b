import { parse, TomlError } from "smol-toml";

/** A parsed TOML text, with the positions of its keys. */
export interface Toml {
  readonly value: unknown;
  /** Returns the line (from 1) of the value at a path, or of its nearest parent that exists; undefined for the top level. */
  lineOf(path: readonly PropertyKey[]): number | undefined;
}

/** Parses TOML. An error names the position and never quotes the text, which may contain tokens. */
export function readToml(text: string, source: string): Toml {
  const value = parseOrRefuse(text, source);
  const lines = text.split("\n");
  const ends = endsOf(text);
  return {
    value,
    // The parser reports no positions. But the first lines are valid TOML up to each end, and their content only grows: so a binary
    // search finds the end at which a key appears.
    lineOf(path) {
      const known = path.slice(0, depth(value, path));
      if (known.length === 0) return undefined;
      let [none, some] = [-1, ends.length - 1];
      while (some - none > 1) {
        const middle = Math.floor((none + some) / 2);
        const found = tryParse(`${lines.slice(0, ends[middle]).join("\n")}\n`);
        if (depth(found, known) === known.length) some = middle;
        else none = middle;
      }
      return ends[some];
    },
  };
}

/** Lists the lines (from 1) of valid TOML at whose end no value is open: every other cut leaves text that is not valid. */
function endsOf(text: string): number[] {
  const ends: number[] = [];
  let [line, open] = [1, 0];
  for (const [token] of `${text}\n`.matchAll(tomlToken)) {
    line += token.split("\n").length - 1;
    if (token === "\n" && open === 0) ends.push(line - 1);
    else if (/^[[{]$/.test(token)) open += 1;
    else if (/^[\]}]$/.test(token)) open -= 1;
  }
  return ends;
}

/** Comments, strings (of several lines first), brackets and line ends: what else there is opens and closes nothing. */
const tomlToken = /#[^\n]*|"""(?:\\[\s\S]|[^\\])*?"{3,5}|'''[\s\S]*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[[\]{}\n]/g;

function parseOrRefuse(text: string, source: string): unknown {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    // Only the first line of the message, and no cause: the rest quotes the file.
    const [what] = error.message.split("\n");
    throw new ConfigError(`${source}, line ${error.line}, column ${error.column}: ${what}`);
  }
}

function tryParse(text: string): unknown {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** Counts the parts of a path that exist. */
function depth(value: unknown, path: readonly PropertyKey[]): number {
  const [key, ...rest] = path;
  if (key === undefined || typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return 0;
  const next: unknown = Reflect.get(value, key);
  return 1 + depth(next, rest);
}

/** Place of the settings, with the roots that their files must be outside of. */
export interface EntrySource {
  readonly file: string;
  readonly lineOf: Toml["lineOf"];
  readonly workspaces: ReadonlyMap<string, string>;
}

/** Returns the place of a value, to begin an error with: the file, the line and the table. */
export function entryPlace({ file, lineOf }: EntrySource, path: readonly PropertyKey[], table: string): string {
  return `${file}:${lineOf(path) ?? "?"}: ${table}`;
}

/** An invalid setting. The message names the setting, its source, the reason and the next step. */
export class ConfigError extends Error {
  override name = "ConfigError";
}
