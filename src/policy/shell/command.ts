import { effectsOf, mayRunItsWords, movesPaths, programOf } from "./behaviour.ts";
import { type CodeFile, type CommandCode, commandCode, type FeedingPipeline, pipelinesIn } from "./code.ts";
import { type Danger, type Inner, pathIn, type RiskFound, type Use } from "./effects.ts";
import { type CommandLine, type Join, Opaque, type SimpleCommand, type Word } from "./line.ts";
import { changesShell } from "./programs.ts";
import { maxReadLength, readLine } from "./reader.ts";
import { confirm, mentionedIn } from "./second-reading.ts";
import { setsOnlyHarmless, spell, spellCommand } from "./spelling.ts";

/** One command of a line, as far as it is understood. */
export interface Command {
  /** The reason why it was not understood. It may do anything, and all fields but the texts are empty. */
  opaque?: string;
  /** The text to ask for: the whole command in its canonical spelling; for an opaque line its trimmed text. */
  text: string;
  /** The text that rules match: the program and its words. */
  bare: string;
  words: readonly Word[];
  /** Other spellings of it and of the commands that it runs. They can only make a decision stricter. */
  spellings: readonly string[];
  /** Dangers that only a rule covers that spells out the first `length` characters of `bare`. */
  dangers: readonly (Danger & { length: number; texts: readonly string[] })[];
  uses: readonly Use[];
  /** The commands that it runs: it is allowed only if each of these is. */
  inner: readonly Command[];
  /** Files that it runs as scripts. */
  scripts: readonly string[];
  /** The files that it runs or reads as code, with those of the commands that it runs. */
  code: CommandCode;
  /** The programs that it names, including wrappers that only run another one. */
  programs: readonly string[];
  /** The words of each command that it names anywhere: its own first, then those that it runs. */
  mentions: readonly (readonly string[])[];
  /** The pipeline that feeds it its program, itself included. */
  pipeline?: FeedingPipeline;
  /** True if it reads from or writes to files by redirects. */
  redirected: boolean;
  /** The directory in which it runs, relative to that of the line. */
  directory: string;
}

/** What was understood of a line. */
export interface LineReading {
  commands: readonly Command[];
  /** Absent where they are still to be found. */
  risks?: readonly RiskFound[];
}

/** Readings of lines, and of some of their commands by themselves, by text. Readers take what they hold as it is. */
export type Readings = ReadonlyMap<string, LineReading>;

/** Reads a command line into its commands, at least one. Never throws: a line that it does not understand is one opaque command. */
export function readCommands(text: string): Command[] {
  if (isTooDeep(text)) return unreadCommands(text, `more than ${maxNesting} brackets within each other`);
  return readWithin(text, "", 0);
}

/** The same for a line that runs in a directory, and by commands of others to a depth. */
function readWithin(text: string, directory: string, depth: number): Command[] {
  try {
    const line = readLine(text);
    confirm(line, text);
    return commandsOf(line, directory, depth);
  } catch (cause) {
    if (!(cause instanceof Opaque)) throw cause;
    return [opaqueLine(text, cause.message)];
  }
}

/** Checks if a line is short and has nothing that nests, so that reading it costs little. A line over the limit is not read at all. */
export function isSimpleLine(text: string): boolean {
  return text.length > maxReadLength || (Buffer.byteLength(text) <= 256 && !/[$`()]/.test(text));
}

/** Describes a line that was not read, by its own text and that of its only command. */
export function unreadLine(line: string, why: string): Readings {
  const commands = unreadCommands(line, why);
  return new Map([line, withoutSpace(line)].map((text) => [text, { commands }]));
}

/** Describes patterns that are no command lines: nothing of them is known, and they name no files. */
export function readAsTexts(texts: readonly string[]): Readings {
  return new Map(texts.map((text) => [text, { commands: unreadCommands(text, "it is no command line", []) }]));
}

/** Describes a line that was not read, so that it may do anything. */
function unreadCommands(line: string, why: string, uses: readonly Use[] = [anyObjects]): Command[] {
  return [opaqueCommand(line, why, { commands: [], sources: [], uses })];
}

/** Git's objects, which no sandbox hides: a line that was not read may print each of them. */
const anyObjects: Use = { path: ".", glob: false, as: "read", within: { as: "objects", objects: "history" } };

const maxNesting = 100;
/** A parser may take time that grows with the square of the depth; counts brackets also in quotes, where they are text. */
function isTooDeep(text: string): boolean {
  let depth = 0;
  let ticks = 0;
  for (const character of text) {
    if (character === "`") ticks += 1;
    else if (character === "(" || character === "{") depth += 1;
    else if (character === ")" || character === "}") depth = Math.max(0, depth - 1);
    if (depth > maxNesting || ticks > 2 * maxNesting) return true;
  }
  return false;
}

/** Understands the commands of a line that runs in a directory. */
function commandsOf(line: CommandLine, below: string, depth: number): Command[] {
  const pipelines = pipelinesIn(line);
  return inDirectories(line).map(({ command, plain, directory: within, moved }) => {
    const directory = within.startsWith("/") || below === "" ? within : `${below}/${within}`;
    const pipeline = pipelines.get(plain);
    return { ...understood(command, directory, depth, moved), ...(pipeline && { pipeline }) };
  });
}

/** Reads one command of a line, by its text, with what the rest of the line means for it. */
export function readCommandOf(text: string, line: string, readings?: Readings): readonly Command[] {
  const commands = readings?.get(line)?.commands ?? readCommands(line);
  const same = commands.filter((command) => command.text === text);
  if (same.length > 0) return same.map((command) => ({ ...command, directory: "" }));
  return readings?.get(text)?.commands ?? readCommands(text);
}

const deepest = 5;

/** Follows `cd` through a line. A command after a `cd` that may have failed is returned once for each directory in which it may run. */
function inDirectories({ commands }: CommandLine): PlacedCommand[] {
  let now: readonly string[] = [""];
  let ever = now;
  let behindCd: readonly string[] | undefined;
  let piped = "";
  const movers = commands.map(({ command }) => movesPaths(command.words));
  return commands.flatMap(({ join, command: plain }, i) => {
    const name = programOf(plain.words);
    const changing = isBuiltinRunner.test(name)
      ? plain.words.find(({ value }) => changesShell.has(value) || value === "cd")?.value
      : name;
    if (commands.length > 1 && changing !== undefined && (changesShell.has(changing) || changing !== name))
      throw new Opaque(`${changing} changes what the rest means`);
    piped = join === "|" ? piped : "";
    const command = piped === "" ? plain : { ...plain, piped };
    piped += `${plain.words.map(({ value }) => value).join(" ")}\n${plain.input ?? ""}\n`;
    const other = movers.findIndex((mover, at) => mover !== undefined && at !== i);
    const moved = movers[other];
    if (join === ";" || join === "||") now = ever;
    else if (behindCd) now = behindCd;
    behindCd = undefined;
    const placed = now.map((directory) => ({ command, plain, directory, ...(moved !== undefined && { moved }) }));
    if (name !== "cd") return placed;
    const next = now.flatMap((directory) => moveTo(directory, command, [join, commands[i + 1]?.join]));
    // `a || cd x && b` runs b also if the cd did not run.
    behindCd = join === "||" ? distinct([...now, ...next]) : distinct(next);
    ever = distinct([...ever, ...next]);
    if (ever.length > maxDirectories) throw new Opaque("too many directories in which the rest may run");
    return placed;
  });
}

const maxDirectories = 4;
const isBuiltinRunner = /^(builtin|command)$/;

/** A command and the directory in which it runs. */
interface PlacedCommand {
  command: SimpleCommand;
  /** The same without what is piped into it. */
  plain: SimpleCommand;
  directory: string;
  /** Another command of the line that may change which files its paths name. */
  moved?: string;
}

/** Returns the directories to which a `cd` may lead: bash drops `name/..` from a path, also where the name is a link. */
function moveTo(directory: string, { words }: SimpleCommand, joins: readonly (Join | undefined)[]): string[] {
  const [, target, more] = words;
  if (!target || more || target.glob || target.status || /^[-+~]/.test(target.value) || target.value === "") {
    throw new Opaque("a cd to a directory that is not named literally");
  }
  if (joins.includes("|")) throw new Opaque("a cd in a pipeline");
  const path = target.value.startsWith("/") || directory === "" ? target.value : `${directory}/${target.value}`;
  return distinct([path, withoutParents(path)]);
}

function withoutParents(path: string): string {
  const parts: string[] = [];
  for (const part of path.split("/")) {
    if (part === ".." && parts.length > 0 && parts.at(-1) !== "..") parts.pop();
    else if (part !== "." && part !== "") parts.push(part);
  }
  return `${path.startsWith("/") ? "/" : ""}${parts.join("/")}`;
}

function understood(command: SimpleCommand, directory: string, depth: number, moved?: string): Command {
  const { words, redirects } = command;
  const effects = effectsOf(command);
  const bare = spell(words);
  const inner = depth < deepest ? effects.inner.flatMap((found) => innerOf(found, directory, depth + 1)) : [];
  const dangers = effects.dangers.map((danger) => ({
    ...danger,
    length: lengthTo(words, danger.at),
    texts: danger.texts ?? (danger.mayBegin ? bothWays(named(words.slice(danger.at))) : []),
  }));
  const whole = (why: string) => dangers.push({ at: never, length: never, why, texts: [] });
  if (!setsOnlyHarmless(command)) whole(`it sets ${command.assignments.map(({ name }) => name).join(", ")}`);
  if (behindOptions(named(words)).length >= maxWrapped)
    whole(`more than ${maxWrapped} options may stand before the rest`);
  if (programOf(words) === "ssh" && words.length > maxWrapped) whole(`it has more than ${maxWrapped} words`);
  if (depth >= deepest && effects.inner.length > 0) whole("it runs commands within commands within commands");
  if (words.some(({ status }) => status) && !statusReaders.has(programOf(words))) whole("$? may be any number");
  const redirections = redirects.map(
    ({ operator, target }): Use => ({
      path: target,
      glob: false,
      as: operator === "<" ? "read" : "write",
    }),
  );
  for (const { path } of redirections) if (/^\/(proc|dev|sys)(\/|$)/.test(path)) whole(`${path} is of the kernel`);
  const usesPaths = effects.uses.length + redirections.length + effects.scripts.length > 0 || inner.length > 0;
  if (moved !== undefined && usesPaths) whole(`${moved} in the same line may change which files its paths name`);
  const text = spellCommand(command);
  const code = commandCode(
    command,
    effects,
    inner.some((one) => one.code.runsMore),
  );
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
    code: { ...code, files: [...code.files, ...inner.flatMap(({ code }) => code.files)] },
    programs: distinct([words[0]?.value ?? "", ...inner.flatMap(({ programs }) => programs)]),
    mentions: [words.map(({ value }) => value), ...inner.flatMap(({ mentions }) => mentions)],
    redirected: redirects.length > 0 || command.input !== undefined,
    directory,
  };
}

const never = Number.POSITIVE_INFINITY;

function lengthTo(words: readonly Word[], at: number): number {
  return at === never ? never : spell(words.slice(0, at + 1)).length;
}

const statusReaders = new Set(["echo", "printf", "exit", "test", "["]);

function innerOf(inner: Inner, directory: string, depth: number): Command[] {
  const { directory: to, ...plain } = inner;
  if (to !== undefined) return innerOf(plain, directory, depth).map(movedTo(to));
  if ("words" in inner) {
    return [understood({ assignments: [], words: inner.words, redirects: [] }, directory, depth)];
  }
  if (inner.opaque !== undefined) return [opaqueLine(inner.line, inner.opaque)];
  return readWithin(inner.line, directory, depth);
}

/** Checks if a program, named with or without its directory, is git. */
export const isGit = (program: string) => /(^|\/)git$/.test(program);

/** Describes a command that runs in a directory, by paths from outside of it. */
const movedTo = (to: string) => (command: Command) => {
  const { uses, scripts, code, programs } = command;
  const moved = (path: string) => pathIn(to, path);
  // Also a sub-command of git that names nothing runs the hooks there.
  const there: Use[] = programs.some(isGit) ? [{ path: ".", glob: false, as: "look", within: { as: "objects" } }] : [];
  return {
    ...command,
    uses: [...uses, ...there].map((use) => ({
      ...use,
      ...(use.within ? { within: { ...use.within, at: moved(use.within.at ?? ".") } } : { path: moved(use.path) }),
      ...(use.trees && { trees: use.trees.map((tree) => ({ ...tree, from: moved(tree.from) })) }),
    })),
    scripts: scripts.map(moved),
    code: { ...code, files: code.files.map((file) => ({ ...file, path: moved(file.path) })) },
  };
};

/** Returns spellings of a command: without the program's directory, without quotes, and from each word on that a wrapper may run. */
function spellingsOf(words: readonly Word[]): string[] {
  const own = [...bothWays(named(words)), unquoted(words), ...behindOptions(named(words)).flatMap(bothWays)];
  if (!mayRunItsWords(programOf(words)) || words.length > maxWrapped) return own;
  return [...own, ...words.flatMap((_, i) => (i === 0 ? [] : bothWays(named(words.slice(i)))))];
}

const maxWrapped = 64;

/** Replaces the program's path with its name. */
function named(words: readonly Word[]): Word[] {
  return words.map((word, i) => (i === 0 ? { ...word, value: programOf(words) } : word));
}

function bothWays(words: readonly Word[]): string[] {
  return words.length === 0 ? [] : [spell(words), unquoted(words)];
}

function unquoted(words: readonly Word[]): string {
  return words.map(({ value }) => value).join(" ");
}

/** Removes the options before the first operand: `git -C x push` becomes `git push`. Each option may take the next word as its value. */
function behindOptions([program, ...rest]: readonly Word[]): Word[][] {
  const found: Word[][] = [];
  for (let at = 0; program && at < rest.length && found.length < maxWrapped; at++) {
    const isOption = (place: number) => /^[-+]./.test(rest[place]?.value ?? "");
    if (isOption(at)) continue;
    if (at > 0) found.push([program, ...rest.slice(at)]);
    if (!isOption(at - 1)) break;
  }
  return found;
}

function opaqueLine(line: string, why: string): Command {
  const { commands, sources, targets, isWhole } = mentionedIn(line);
  const mentioned = commands
    .map((values) => values.flatMap(alternatives).map((value) => ({ value, glob: false, status: false })))
    .map((words) => understood({ assignments: [], words, redirects: [] }, "", deepest - 1));
  const uses = [
    ...mentioned.flatMap(({ uses }) => uses.filter(({ as, path }) => as !== "look" || mayLeave.test(path))),
    ...sources.map((path): Use => ({ path, glob: false, as: "read" })),
    ...targets.map((path): Use => ({ path, glob: false, as: "write" })),
    ...(isWhole ? [] : [anyObjects]),
  ];
  return opaqueCommand(line, why, { commands: mentioned, sources, uses });
}

/** Describes a line that may do anything, by the commands and the scripts that it mentions. */
function opaqueCommand(
  line: string,
  why: string,
  { commands, sources, uses }: { commands: readonly Command[]; sources: readonly string[]; uses: readonly Use[] },
): Command {
  const text = withoutSpace(line);
  const scripts = sources.map((path): CodeFile => ({ path, glob: false, use: "script" }));
  return {
    opaque: why,
    text,
    bare: text,
    words: [],
    spellings: distinct(
      [line, withoutDirectory(text), ...commands.flatMap(({ bare, spellings }) => [bare, ...spellings])],
      text,
    ),
    dangers: [],
    uses,
    inner: [],
    scripts: [],
    code: { files: [...commands.flatMap(({ code }) => code.files), ...scripts], runsMore: true },
    programs: distinct(commands.flatMap(({ programs }) => programs)),
    mentions: commands.flatMap(({ mentions }) => mentions),
    redirected: false,
    directory: "",
  };
}

/** Expands the braces of a word like bash, in simple cases. */
function alternatives(word: string): string[] {
  const [, before = "", inside, after = ""] = /^([^{]*)\{([^{}]*,[^{}]*)\}(.*)$/s.exec(word) ?? [];
  return inside === undefined ? [word] : inside.split(",").map((one) => before + one + after);
}

/** Trims blanks and line ends from a line. Any other character belongs to it. Looks at each blank once, not once for each before it. */
export function withoutSpace(line: string): string {
  return line.replace(/^[ \t\n]+|(?<![ \t\n])[ \t\n]+$/g, "");
}

/** The beginnings of paths that may lead out of their directory. */
const mayLeave = /^(\/|~|\$HOME|\$\{HOME\}|(.*\/)?\.\.(\/|$))/;

/** Reduces the program of a line to its name: `/bin/rm -r x` becomes `rm -r x`. */
function withoutDirectory(line: string): string {
  const end = line.search(/\s/);
  const program = end === -1 ? line : line.slice(0, end);
  return line.slice(program.lastIndexOf("/") + 1);
}

function distinct(texts: readonly string[], but?: string): string[] {
  return [...new Set(texts)].filter((text) => text !== but);
}
