import type { Word } from "./line.ts";

/** How a command touches a path: `look` at names only, `may` read it, `read` it, `change` what is there, `write` it. */
export type FileAccess = "look" | "may" | "read" | "change" | "write";

/** A path that a command names. */
export interface Use {
  /** As it is written: relative ones against the folder in which the command runs. */
  path: string;
  glob: boolean;
  as: FileAccess;
  /** If the path is a folder, it is these names in it that are touched. */
  names?: readonly string[];
  /** If the path is a folder, what lies below it is touched as well. */
  below?: Below;
}

/** Which of the files below a folder a command reaches. */
export interface Below {
  /** Also those whose name begins with a dot, or that lie in such a folder. */
  hidden: boolean;
  /** Also what links lead to. */
  links: boolean;
  /** Only files with a name like one of these. */
  only?: readonly string[];
  /** Not into folders of these names. */
  except?: readonly string[];
}

/** Something that a rule cannot have meant unless it spells it out. */
export interface Danger {
  /** The place of the word: a rule means it whose text is literal so far. Infinity: only one that is so to the end. */
  at: number;
  /** For a person. */
  why: string;
  /** From this word on it may be a command of its own: it counts only where a rule asks about that or denies it. */
  mayBegin?: true;
  /** It is what the words up to this one say: a grant for them means it. */
  isNamed?: true;
}

/** What a command does beyond what its program stands for. */
export interface Effects {
  dangers: Danger[];
  uses: Use[];
  /** Commands that it runs: each must be allowed as well. */
  inner: Inner[];
  /** Files whose content it runs as a program. */
  scripts: string[];
}

/** A command within a command: its words, or a line for a shell. */
export type Inner = { words: readonly Word[]; at: number } | { line: string; at: number };

/** Nothing in particular. */
export function noEffects(): Effects {
  return { dangers: [], uses: [], inner: [], scripts: [] };
}

/** A path that a word is, or that stands in it: behind `=`, `@`, `:` or `,`. */
export function usesIn({ value, glob }: Word, as: FileAccess, below?: Below): Use[] {
  const pieces = new Set([value, value.slice(value.indexOf("=") + 1)].map((piece) => piece.replace(/^@/, "")));
  const plain = [...pieces].filter((piece) => piece !== "" && !isUrl(piece));
  return [...plain, ...partsThatLeave(value)].map((path) => ({ path, glob, as, ...(below && { below }) }));
}

/** The parts of a word that would lead out of any folder, if they are paths. */
function partsThatLeave(value: string): string[] {
  const files = [...value.matchAll(/file:\/*(\/[^\s]*)/gi)].map(([, path]) => path ?? "/");
  if (isUrl(value)) return files;
  const parts = value.split(/[=:,@<>]/).slice(1);
  return [...files, ...parts.filter((part) => /^(\/|\.\.(\/|$)|.*\/\.\.(\/|$))/.test(part) && !part.startsWith("//"))];
}

function isUrl(value: string): boolean {
  return /(^|[=@])[a-z][a-z0-9+.-]*:\/\//i.test(value);
}
