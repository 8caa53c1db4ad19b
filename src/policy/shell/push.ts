import type { Command } from "./command.ts";
import { pushWords } from "./git.ts";
import type { Word } from "./line.ts";

/** A `git push` of which the line itself leaves no doubt where it goes; the settings of the repository say the rest. */
export interface Push {
  /** The name or address of a remote, if the line has one. */
  remote?: string;
  /** The refs that it changes there, as the line names them. */
  refs: readonly string[];
}

/** A `git push` in a repository. */
export interface PlacedPush extends Push {
  top: string;
}

/** Reads a `git push`; undefined for other commands, and where an option, a variable or a pattern may lead elsewhere. */
export function pushOf({ text, bare, words, opaque }: Command): Push | undefined {
  if (opaque !== undefined || text !== bare || words[0]?.value !== "git" || words[1]?.value !== "push")
    return undefined;
  if (words.some(({ glob, status }) => glob || status)) return undefined;
  const read = pushWords(words);
  if (!read || read.options.some(({ means }) => means === "run" || means === undefined)) return undefined;
  const [remote, ...refs] = read.operands.map(({ word }) => word.value);
  if (refs.includes("tag")) return undefined;
  const all = read.options.flatMap(({ name }) => wholes.get(name) ?? []);
  return { ...(remote !== undefined && { remote }), refs: [...all, ...refs.map(targetOf)] };
}

const wholes: ReadonlyMap<string, string> = new Map([
  ["--all", "all branches"],
  ["--branches", "all branches"],
  ["--mirror", "all refs"],
  ["--tags", "all tags"],
]);

/** The ref that `SOURCE:TARGET` changes. */
const targetOf = (ref: string) => ref.replace(/^\+/, "").replace(/^.*:/, "");

/** Checks if a command leaves the settings of repositories, and the branch that is checked out, as they are. */
export function leavesRemotes({ words, opaque, code, uses, inner }: Command): boolean {
  if (opaque !== undefined || code.runsMore || inner.length > 0) return false;
  if (isGit(words)) return calm.test(words[1]?.value ?? "");
  return !uses.some(({ as }) => as === "change" || as === "write");
}

const isGit = ([program]: readonly Word[]) => program?.value === "git";
const calm = /^(add|commit|diff|fetch|log|push|rev-parse|show|status|tag)$/;
