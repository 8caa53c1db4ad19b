import { parse, TomlError } from "smol-toml";
import { ConfigError } from "./errors.ts";

/** A TOML text that was read, and where its keys are. */
export interface Toml {
  readonly value: unknown;
  /** The line (from 1) on which what a path leads to is written, or else the nearest part above it; undefined for the top. */
  lineOf(path: readonly PropertyKey[]): number | undefined;
}

/** Parses TOML. An error names the place and never quotes the text, which may hold tokens. */
export function readToml(text: string, source: string): Toml {
  const value = parseOrRefuse(text, source);
  const lines = text.split("\n");

  /** What the first so many lines hold, or with the next ones if the cut goes through a value. */
  function beginning(count: number): { value: unknown; line: number } {
    for (let line = count; line < lines.length; line += 1) {
      const found = tryParse(`${lines.slice(0, line).join("\n")}\n`);
      if (found !== undefined) return { value: found, line };
    }
    return { value, line: lines.length };
  }

  return {
    value,
    // The parser tells no places. But whole lines from the top are TOML again, unless the cut goes through a value, and
    // what they hold only grows: so the first ones that hold a key end where it is written.
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
    // Only the first line of its message, and no cause: the rest quotes the file.
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

/** How many parts of a path are there. */
function depth(value: unknown, path: readonly PropertyKey[]): number {
  const [key, ...rest] = path;
  if (key === undefined || typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return 0;
  const next: unknown = Reflect.get(value, key);
  return 1 + depth(next, rest);
}
