import { effectsOf, mayRunItsWords, programOf } from "./behaviour.ts";
import type { Danger, Inner, Use } from "./effects.ts";
import { type CommandLine, type Join, Opaque, type SimpleCommand, type Word } from "./line.ts";
import { changesShell } from "./programs.ts";
import { readLine } from "./reader.ts";
import { confirm, mentionedIn } from "./second-reading.ts";
import { setsOnlyHarmless, spell, spellCommand } from "./spelling.ts";

/** One command of a line, as far as it is understood. */
export interface Command {
  /** Why it was not understood: it may do anything, and the rest is empty but for texts. */
  opaque?: string;
  /** What is asked for: the whole command in its one spelling; of an opaque line its text without space around it. */
  text: string;
  /** What rules are written for: the program and its words. */
  bare: string;
  words: readonly Word[];
  /** Other spellings of it and of what it runs. They can only make a decision stricter. */
  spellings: readonly string[];
  /** What only a rule means that spells out the first `length` characters of `bare`. */
  dangers: readonly (Danger & { length: number; texts: readonly string[] })[];
  uses: readonly Use[];
  /** What it runs: allowed only if each of these is, too. */
  inner: readonly Command[];
  /** Files whose content it runs. */
  scripts: readonly string[];
  /** The programs that it names, also those that only run what is behind them. */
  programs: readonly string[];
  /** Whether it reads from or writes to files by redirects. */
  redirected: boolean;
  /** The folder it runs in, relative to that of the line. */
  folder: string;
}

/** Reads a command line into its commands; never none. It never fails: what it does not understand is one opaque command. */
export function readCommands(text: string): Command[] {
  try {
    const line = readLine(text);
    confirm(line, text);
    return inFolders(line).map(({ command, folder }) => understood(command, folder, 0));
  } catch (cause) {
    if (!(cause instanceof Opaque)) throw cause;
    return [opaqueLine(text, cause.message)];
  }
}

const deepest = 5;

/** Follows `cd` through a line. A command behind one that may have failed is there once for each folder it may run in. */
function inFolders({ commands }: CommandLine): { command: SimpleCommand; folder: string }[] {
  let now: readonly string[] = [""];
  let ever = now;
  let behindCd: readonly string[] | undefined;
  return commands.flatMap(({ join, command }, i) => {
    const name = programOf(command.words);
    if (commands.length > 1 && changesShell.has(name)) throw new Opaque(`${name} changes what the rest means`);
    if (join === ";" || join === "||") now = ever;
    else if (behindCd) now = behindCd;
    behindCd = undefined;
    const placed = now.map((folder) => ({ command, folder }));
    if (name !== "cd") return placed;
    const moved = now.map((folder) => moveTo(folder, command, [join, commands[i + 1]?.join]));
    // `a || cd x && b` runs b also where there was no cd.
    behindCd = join === "||" ? distinct([...now, ...moved]) : moved;
    ever = distinct([...ever, ...moved]);
    if (ever.length > maxFolders) throw new Opaque("too many folders in which the rest may run");
    return placed;
  });
}

const maxFolders = 4;

function moveTo(folder: string, { words }: SimpleCommand, joins: readonly (Join | undefined)[]): string {
  const [, target, more] = words;
  if (!target || more || target.glob || target.status || /^[-+~]/.test(target.value) || target.value === "") {
    throw new Opaque("a cd to a folder that is not named literally");
  }
  if (joins.includes("|")) throw new Opaque("a cd in a pipeline");
  return target.value.startsWith("/") || folder === "" ? target.value : `${folder}/${target.value}`;
}

function understood(command: SimpleCommand, folder: string, depth: number): Command {
  const { words, redirects } = command;
  const effects = effectsOf(command);
  const bare = spell(words);
  const inner = depth < deepest ? effects.inner.flatMap((found) => innerOf(found, folder, depth + 1)) : [];
  const dangers = effects.dangers.map((danger) => ({
    ...danger,
    length: lengthTo(words, danger.at),
    texts: danger.mayBegin ? bothWays(named(words.slice(danger.at))) : [],
  }));
  const whole = (why: string) => dangers.push({ at: never, length: never, why, texts: [] });
  if (!setsOnlyHarmless(command)) whole(`it sets ${command.assignments.map(({ name }) => name).join(", ")}`);
  if (depth >= deepest && effects.inner.length > 0) whole("it runs commands within commands within commands");
  if (words.some(({ status }) => status) && !tellsStatus.has(programOf(words))) whole("$? may be any number");
  const redirections = redirects.map(
    ({ operator, target }): Use => ({
      path: target,
      glob: false,
      as: operator === "<" ? "read" : "write",
    }),
  );
  for (const { path } of redirections) if (/^\/(proc|dev|sys)(\/|$)/.test(path)) whole(`${path} is of the kernel`);
  const text = spellCommand(command);
  const uses = [...effects.uses, ...redirections, ...inner.flatMap(({ uses }) => uses)];
  return {
    text,
    bare,
    words,
    spellings: distinct(
      [text, ...spellingsOf(words), ...inner.flatMap(({ bare, spellings }) => [bare, ...spellings])],
      bare,
    ),
    dangers,
    uses,
    inner,
    scripts: [...effects.scripts, ...inner.flatMap(({ scripts }) => scripts)],
    programs: distinct([words[0]?.value ?? "", ...inner.flatMap(({ programs }) => programs)]),
    redirected: redirects.length > 0 || command.input !== undefined,
    folder,
  };
}

const never = Number.POSITIVE_INFINITY;

function lengthTo(words: readonly Word[], at: number): number {
  return at === never ? never : spell(words.slice(0, at + 1)).length;
}

const tellsStatus = new Set(["echo", "printf", "exit", "test", "["]);

function innerOf(inner: Inner, folder: string, depth: number): Command[] {
  if ("words" in inner) {
    return [understood({ assignments: [], words: inner.words, redirects: [] }, folder, depth)];
  }
  try {
    const line = readLine(inner.line);
    confirm(line, inner.line);
    return inFolders(line).map(({ command, folder: within }) =>
      understood(command, within.startsWith("/") || folder === "" ? within : `${folder}/${within}`, depth),
    );
  } catch (cause) {
    if (!(cause instanceof Opaque)) throw cause;
    return [opaqueLine(inner.line, cause.message)];
  }
}

/** Its program without a folder, without quotes, and without each of the words that a wrapper puts before another program. */
function spellingsOf(words: readonly Word[]): string[] {
  const own = [...bothWays(named(words)), unquoted(words), ...withoutOptions(named(words)).flatMap(bothWays)];
  if (!mayRunItsWords(programOf(words)) || words.length > maxWrapped) return own;
  return [...own, ...words.flatMap((_, i) => (i === 0 ? [] : bothWays(named(words.slice(i)))))];
}

const maxWrapped = 64;

/** The words with the program's name in place of its path. */
function named(words: readonly Word[]): Word[] {
  return words.map((word, i) => (i === 0 ? { ...word, value: programOf(words) } : word));
}

function bothWays(words: readonly Word[]): string[] {
  return words.length === 0 ? [] : [spell(words), unquoted(words)];
}

function unquoted(words: readonly Word[]): string {
  return words.map(({ value }) => value).join(" ");
}

/** `git -C x push` as `git push`: without the options before the first operand. Any of them may have the next word as its value. */
function withoutOptions([program, ...rest]: readonly Word[]): Word[][] {
  const found: Word[][] = [];
  for (let at = 0; program && at < Math.min(rest.length, maxWrapped); at++) {
    const isOption = (place: number) => /^[-+]./.test(rest[place]?.value ?? "");
    if (isOption(at)) continue;
    if (at > 0) found.push([program, ...rest.slice(at)]);
    if (!isOption(at - 1)) break;
  }
  return found;
}

function opaqueLine(line: string, why: string): Command {
  const text = withoutSpace(line);
  const { commands, sources, targets } = mentionedIn(line);
  const mentioned = commands
    .map((values) => values.flatMap(alternatives).map((value) => ({ value, glob: false, status: false })))
    .map((words) => understood({ assignments: [], words, redirects: [] }, "", deepest - 1));
  return {
    opaque: why,
    text,
    bare: text,
    words: [],
    spellings: distinct(
      [line, withoutFolder(text), ...mentioned.flatMap(({ bare, spellings }) => [bare, ...spellings])],
      text,
    ),
    dangers: [],
    uses: [
      ...mentioned.flatMap(({ uses }) => uses.filter(({ as, path }) => as !== "look" || mayLeave.test(path))),
      ...sources.map((path): Use => ({ path, glob: false, as: "read" })),
      ...targets.map((path): Use => ({ path, glob: false, as: "write" })),
    ],
    inner: [],
    scripts: [],
    programs: distinct(mentioned.flatMap(({ programs }) => programs)),
    redirected: false,
    folder: "",
  };
}

/** The words that bash makes of one with braces, as far as that is plain. */
function alternatives(word: string): string[] {
  const [, before = "", inside, after = ""] = /^([^{]*)\{([^{}]*,[^{}]*)\}(.*)$/s.exec(word) ?? [];
  return inside === undefined ? [word] : inside.split(",").map((one) => before + one + after);
}

/** A line without the blanks and line ends around it. Anything else there is a part of it. */
export function withoutSpace(line: string): string {
  return line.replace(/^[ \t\n]+|[ \t\n]+$/g, "");
}

/** How a path begins that may lead out of the folder it is written in. */
const mayLeave = /^(\/|~|\$HOME|\$\{HOME\}|(.*\/)?\.\.(\/|$))/;

/** The line with only the name of its program: `/bin/rm -r x` is `rm -r x`. */
function withoutFolder(line: string): string {
  const end = line.search(/\s/);
  const program = end === -1 ? line : line.slice(0, end);
  return line.slice(program.lastIndexOf("/") + 1);
}

function distinct(texts: readonly string[], but?: string): string[] {
  return [...new Set(texts)].filter((text) => text !== but);
}
