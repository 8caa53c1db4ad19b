import type { RiskKind } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Word } from "./line.ts";

/** Access of a command to a path: `look` at names only, `may` read it, `read` it, `change` existing content, `write` it. */
export type FileAccess = "look" | "may" | "read" | "change" | "write";

/** A path that a command names. */
export interface Use {
  /** The path as written, relative to the directory in which the command runs. */
  path: string;
  glob: boolean;
  as: FileAccess;
  /** If the path is a directory, only these names in it are accessed. */
  names?: readonly string[];
  /** If the path is a directory, the files below it are accessed too. */
  below?: Below;
  /** Directories whose files are written below the path, by the name that they get there. */
  trees?: readonly { from: string; to: string }[];
  /** The access is to a file beside that of the path; see `pathBeside`. */
  ends?: NewEnd;
  /** A `~` at the beginning of the path is the home directory, although nothing expands it. */
  home?: true;
  /** The path is within the repository: absent otherwise. */
  within?: Repository;
}

/** The name of a file that a program writes beside another one: with a suffix more, or without one (`.*`: any). */
export interface NewEnd {
  add?: string;
  remove?: string;
}

/** Returns the path of the file beside another one. */
export function pathBeside(path: string, { add = "", remove = "" }: NewEnd): string {
  if (remove === ".*") return path.replace(/\.[^./]+$/, (suffix) => (/^\.t\w*z\w*$/.test(suffix) ? ".tar" : ""));
  return (path.endsWith(remove) ? path.slice(0, path.length - remove.length) : path) + add;
}

/** Returns a path that is relative to a directory. */
export const pathIn = (directory: string | undefined, path: string) =>
  directory === undefined || /^(\/|~(\/|$))/.test(path) ? path : `${directory}/${path}`;

/** The meaning of a path for git. */
export interface Repository {
  /**
   * `top`: from its top directory. `whole`: all of it, unless one of `limits` exists. `source`: another repository, if it exists.
   * `objects`: nothing of the work tree.
   */
  as: "top" | "whole" | "source" | "objects";
  /** Words that git takes for paths if they exist. */
  limits?: readonly string[];
  /** Includes files that git does not track. */
  untracked?: boolean;
  /** The directory from which git looks for the repository, if its options name one. */
  at?: string;
  /** The content of objects that git reads, in addition to files of the work tree. */
  objects?: GitObjects;
}

/**
 * Objects of a repository whose content a command reads: those of the index, those of the index and the history, or, only if the
 * line has other commands that may read them then, those that it restores to the work tree.
 */
export type GitObjects = "index" | "history" | "restored";

/** Selection of the files below a directory that a command reaches. */
export interface Below {
  /** Includes names that begin with a dot, and everything below such directories. */
  hidden: boolean;
  /** Follows links. */
  links: boolean;
  /** Only files whose name matches one of these patterns. */
  only?: readonly string[];
  /** Skips directories of these names. */
  except?: readonly string[];
}

/** An effect that a rule covers only if it spells it out. */
export interface Danger {
  /** The index of the word: a rule covers it if its pattern is literal up to there. Infinity: only if it is literal to the end. */
  at: number;
  /** For people. */
  why: string;
  /** The words from here on may be a separate command: the danger counts only where a rule asks about that command or denies it. */
  mayBegin?: true;
  /** The words up to this one name the effect: a grant for them covers it. */
  isNamed?: true;
  /** With `mayBegin`: further texts that may be separate commands. */
  texts?: readonly string[];
}

/** The effects of a command beyond the plain purpose of its program. */
export interface Effects {
  dangers: Danger[];
  uses: Use[];
  /** The commands that it runs: each must be allowed too. */
  inner: Inner[];
  /** Files that it runs as scripts. */
  scripts: string[];
}

/** A command within a command: its words, or a line for a shell; it may run in another directory. */
export type Inner = ({ words: readonly Word[] } | { line: string; opaque?: string }) & {
  at: number;
  directory?: string;
};

/** Returns empty effects. */
export function noEffects(): Effects {
  return { dangers: [], uses: [], inner: [], scripts: [] };
}

/** Returns the commands that a text may hold for another program: what begins at each of its words. */
export function commandsWithin(text: string): string[] {
  const starts = [...text.slice(0, maxText).matchAll(/(?<![\w.])[\w./](?=\S)/g)];
  return starts.flatMap(({ index }) => {
    const rest = text
      .slice(index, index + maxLength)
      .replace(/^[\w./]*\//, "")
      .replaceAll(/\s+/g, " ");
    return [rest, (/^[^;&|()<>"'`\\]*/.exec(rest)?.[0] ?? "").trimEnd()];
  });
}

const maxText = 8_192;
const maxLength = 256;

/** Returns the paths that a word may name: itself, and its parts after `=`, `@`, `:` or `,`. */
export function usesIn({ value, glob }: Word, as: FileAccess, below?: Below): Use[] {
  const pieces = new Set([value, value.slice(value.indexOf("=") + 1)].map((piece) => piece.replace(/^@/, "")));
  const plain = [...pieces].filter((piece) => piece !== "" && !isUrl(piece));
  return [...plain, ...partsThatLeave(value)].map((path) => ({ path, glob, as, ...(below && { below }) }));
}

/** Returns the access to a file beside the one that a word names. */
export function useBeside({ value, glob }: Word, as: FileAccess, ends: NewEnd): Use {
  return glob ? { path: value, glob, as, ends } : { path: pathBeside(value, ends), glob, as };
}

/** Returns the parts of a word that would lead out of any directory, if they are paths. */
function partsThatLeave(value: string): string[] {
  const files = [...value.matchAll(/file:\/*(\/[^\s]*)/gi)].map(([, path]) => path ?? "/");
  if (isUrl(value)) return files;
  const parts = value.split(/[=:,@<>]/).slice(1);
  return [...files, ...parts.filter((part) => /^(\/|\.\.(\/|$)|.*\/\.\.(\/|$))/.test(part) && !part.startsWith("//"))];
}

function isUrl(value: string): boolean {
  return /(^|[=@])[a-z][a-z0-9+.-]*:\/\//i.test(value);
}

/** A kind of risk, and the commands, paths or addresses to which it applies. */
export interface RiskFound {
  kind: RiskKind;
  parts: readonly string[];
}
