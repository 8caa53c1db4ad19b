import { basename } from "node:path";
import { foldCase, matcher } from "../wildcard.ts";
import { effectsOf, endOfOptions, takesNoOptions } from "./behaviour.ts";
import type { Command } from "./command.ts";
import type { Word } from "./line.ts";

/** An entry of a directory. */
export interface Entry {
  name: string;
  isDirectory: boolean;
  isLink: boolean;
}

/** Lists a directory; empty if it cannot be read or is not a directory. With `wanted` other names play no part. */
export type ListDirectory = (directory: string, wanted?: readonly string[]) => Promise<readonly Entry[]>;

const maxPaths = 2_000;

/**
 * Returns the paths to which bash may expand a glob, and the glob itself, which bash keeps if no path matches. May return
 * too many, never too few: a set in brackets stands for any character. Undefined if there are more than can be judged.
 */
export async function pathsOf(glob: string, base: string, list: ListDirectory): Promise<string[] | undefined> {
  const parts = glob.split("/");
  let paths = [""];
  for (const [i, part] of parts.entries()) {
    const step = i === 0 ? "" : "/";
    if (!/[*?[]/.test(part)) {
      paths = paths.map((path) => `${path}${step}${part}`);
      continue;
    }
    const fits = partMatcher(part);
    const found: string[] = [];
    for (const path of paths) {
      const directory = glob.startsWith("/") ? `${path}/` : `${base}/${path}`;
      const names = [...(await list(directory)).map(({ name }) => name), ".", ".."].filter(fits);
      found.push(...names.map((name) => `${path}${step}${name}`));
      if (found.length > maxPaths) return undefined;
    }
    paths = found;
  }
  return [...paths, glob];
}

function partMatcher(part: string): (name: string) => boolean {
  const fits = nameMatcher(part);
  const isHidden = part.startsWith(".") || part.startsWith("[");
  return (name) => (isHidden || !name.startsWith(".")) && fits(name);
}

/**
 * Compiles a pattern for names, in any case. May match too many names: a set in brackets and a character beyond 16 bits stand for
 * any character, and a bracket whose set programs may end at different places stands for any text.
 */
export function nameMatcher(part: string): (name: string) => boolean {
  const pattern = part.replace(pieces, (found, escaped, _, open) => {
    if (open !== undefined) return "*";
    const one = escaped ?? found;
    return one.length > 1 || one === "*" ? "?" : one;
  });
  const fits = matcher(foldCase(pattern));
  return (name) => fits(foldCase(name.replace(/[\u{10000}-\u{10ffff}]/gu, "?")));
}

/** An escaped character, a set of characters, any text, or another character. */
const pieces =
  /\\([\s\S])|\[[!^]?(?![\]!^])(?:\[([:.=])[\w-]+\2\]|\[(?![:.=])|\\[\s\S]|[^\][\\])*\]|(\[[\s\S]*|\*+)|[\s\S]/gu;

/** The directory in which a command runs. */
type DirectoryOf = (command: Command) => Promise<string>;

/**
 * Returns the reason to ask about a command each time because of a glob in it: bash replaces the glob with names of files, and
 * a name such as `-r` or `@list` is no file for the program. `made` holds names that the line itself may create.
 */
export async function nameCaution(
  command: Command,
  directoryOf: DirectoryOf,
  made: readonly string[],
  list: ListDirectory,
): Promise<string | undefined> {
  for (const { at, word } of openGlobs(command)) {
    const [first = "", ...rest] = word.value.split("/");
    const fits = nameMatcher(first);
    const entries = await list(await directoryOf(command));
    const names = entries
      .filter((entry) => rest.length === 0 || entry.isDirectory || entry.isLink)
      .map(({ name }) => name);
    for (const name of [...names, ...made].filter((name) => hasMeaning.test(name) && fits(name)).slice(0, maxNames)) {
      const why = meaningOf({ ...word, value: [name, ...rest].join("/") }, command.words, at);
      if (why !== undefined) return `matches a file by ${word.value}: ${why}`;
    }
  }
  for (const inner of command.inner) {
    const found = await nameCaution(inner, directoryOf, made, list);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Returns the names with a meaning that the commands of a line may create: the last parts of all paths that they use. */
export async function madeNames(
  commands: readonly Command[],
  directoryOf: DirectoryOf,
  list: ListDirectory,
): Promise<string[]> {
  if (commands.length < 2 || !commands.some(hasOpenGlob)) return [];
  const found = new Set<string>();
  for (const command of commands) {
    for (const { path, glob, names = [] } of command.uses) {
      const paths = glob ? ((await pathsOf(path, await directoryOf(command), list)) ?? []) : [path];
      for (const name of [...paths.map((one) => basename(one)), ...names]) if (hasMeaning.test(name)) found.add(name);
    }
  }
  return [...found];
}

/** Marks of names that programs take for options, lists of files, expressions or settings. */
const hasMeaning = /^[-+@!(|,:]|=/;
const maxNames = 100;

function hasOpenGlob(command: Command): boolean {
  return openGlobs(command).length > 0 || command.inner.some(hasOpenGlob);
}

/** Finds the words whose expansion may begin with any character. */
function openGlobs({ words }: Command): { word: Word; at: number }[] {
  return words
    .map((word, at) => ({ word, at }))
    .filter(({ word, at }) => at > 0 && word.glob && /^[*?[]/.test(word.value));
}

/** Returns what a name means to a program in place of a glob, if that is more than a file. */
function meaningOf(word: Word, words: readonly Word[], at: number): string | undefined {
  if (word.value.startsWith("-")) {
    const isOperand = takesNoOptions(words) || at > endOfOptions(words);
    return isOperand ? undefined : `${word.value} is an option`;
  }
  const known = new Set(effectsOf({ assignments: [], words, redirects: [] }).dangers.map(({ why }) => why));
  const replaced = words.with(at, word);
  return effectsOf({ assignments: [], words: replaced, redirects: [] }).dangers.find(
    ({ why, mayBegin }) => !mayBegin && !known.has(why),
  )?.why;
}
