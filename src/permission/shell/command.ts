import { effectsOf, programOf } from "./behaviour.ts";
import { type Danger, type Inner, type Use, usesIn } from "./effects.ts";
import { type Join, type Line, Opaque, type SimpleCommand, type Word } from "./line.ts";
import { changesShell } from "./programs.ts";
import { readLine } from "./reader.ts";
import { confirm, mentionedIn } from "./second-reading.ts";
import { setsOnlyHarmless, spell, spellCommand } from "./spelling.ts";
import { isWrapper } from "./wrappers.ts";

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
  dangers: readonly (Danger & { length: number })[];
  uses: readonly Use[];
  /** What it runs: allowed only if each of these is, too. */
  inner: readonly Command[];
  /** Files whose content it runs. */
  scripts: readonly string[];
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

/** Follows `cd` through a line; what may run in one folder or another is opaque. */
function inFolders({ commands }: Line): { command: SimpleCommand; folder: string }[] {
  let folder = "";
  let moved = false;
  return commands.map(({ join, command }, i) => {
    const name = programOf(command.words);
    if (commands.length > 1 && changesShell.has(name)) throw new Opaque(`${name} changes what the rest means`);
    if (moved && join !== "&&" && join !== "|") throw new Opaque("what comes behind a cd that may have failed");
    const placed = { command, folder };
    if (name !== "cd") return placed;
    folder = moveTo(folder, command, [join, commands[i + 1]?.join]);
    moved = true;
    return placed;
  });
}

function moveTo(folder: string, { words }: SimpleCommand, joins: readonly (Join | undefined)[]): string {
  const [, target, more] = words;
  if (!target || more || target.glob || target.status || /^[-+~]/.test(target.value) || target.value === "") {
    throw new Opaque("a cd to a folder that is not named literally");
  }
  if (joins.includes("|")) throw new Opaque("a cd in a pipeline");
  if (target.value.startsWith("/") || folder === "") return target.value;
  return `${folder}/${target.value}`;
}

function understood(command: SimpleCommand, folder: string, depth: number): Command {
  const { words, redirects } = command;
  const effects = effectsOf(command);
  const bare = spell(words);
  const inner = depth < deepest ? effects.inner.flatMap((found) => innerOf(found, folder, depth + 1)) : [];
  const dangers = effects.dangers.map((danger) => ({ ...danger, length: lengthTo(words, danger.at) }));
  const whole = (why: string) => dangers.push({ at: never, length: never, why });
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
  const [program, ...rest] = words;
  if (!program) return [];
  const name = { ...program, value: programOf(words) };
  const joined = [name, ...rest].map(({ value }) => value).join(" ");
  const own = [spell([name, ...rest]), joined, words.map(({ value }) => value).join(" ")];
  if (!isWrapper(name.value) || words.length > mostWrapped) return own;
  return [...own, ...rest.flatMap((_, i) => innermost(words.slice(i + 1)))];
}

const mostWrapped = 64;

function innermost(words: readonly Word[]): string[] {
  const [program, ...rest] = words;
  if (!program) return [];
  const named = [{ ...program, value: programOf(words) }, ...rest];
  return [spell(named), named.map(({ value }) => value).join(" ")];
}

function opaqueLine(line: string, why: string): Command {
  const text = withoutSpace(line);
  const { commands, targets } = mentionedIn(line);
  const words = commands.map((values) => values.map((value) => ({ value, glob: false, status: false })));
  return {
    opaque: why,
    text,
    bare: text,
    words: [],
    spellings: distinct([line, withoutFolder(text), ...words.flatMap(spellingsOf)], text),
    dangers: [],
    uses: [
      ...words.flat().flatMap((word) => usesIn(word, "look").filter(({ path }) => mayLeave.test(path))),
      ...targets.map((path): Use => ({ path, glob: false, as: "write" })),
    ],
    inner: [],
    scripts: [],
    redirected: false,
    folder: "",
  };
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

function distinct(spellings: readonly string[], text: string): string[] {
  return [...new Set(spellings)].filter((spelling) => spelling !== text);
}
