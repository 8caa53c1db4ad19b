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

  /** Parses the first lines, with as many more as it takes not to cut through a value. */
  function beginning(count: number): { value: unknown; line: number } {
    for (let line = count; line < lines.length; line += 1) {
      const found = tryParse(`${lines.slice(0, line).join("\n")}\n`);
      if (found !== undefined) return { value: found, line };
    }
    return { value, line: lines.length };
  }

  return {
    value,
    // The parser reports no positions. But the first N lines are valid TOML unless the cut goes through a value, and their
    // content only grows with N: so a binary search finds the line at which a key appears.
    lineOf(path) {
      const known = path.slice(0, depth(value, path));
      if (known.length === 0) return undefined;
      let [none, some] = [0, lines.length];
      while (some - none > 1) {
        const middle = Math.floor((none + some) / 2);
        if (depth(beginning(middle).value, known) === known.length) some = middle;
        else none = middle;
      }
      return beginning(some).line;
    },
  };
}

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

/** An invalid setting. The message names the setting, its source, the reason and the next step. */
export class ConfigError extends Error {
  override name = "ConfigError";
}
