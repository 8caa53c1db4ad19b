import { basename, dirname, join, relative, resolve } from "node:path";
import { type ExpandedAsk, factsOfCall } from "../model.ts";
import { mergeRisks, risksOfCommands } from "../risk.ts";
import { type Command, isGit, type LineReading, readCommands } from "./command.ts";
import { type Containment, contain } from "./containment.ts";
import { type GitObjects, pathBeside, type Repository, type Use } from "./effects.ts";
import { madeNames, nameCaution, pathsOf } from "./glob.ts";
import { leavesRemotes, type PlacedPush, pushOf } from "./push.ts";
import {
  type Allowed,
  addBelow,
  addCode,
  addCopies,
  asksOf,
  canBePath,
  createTouched,
  type ExpandPlace,
  type Files,
  maxBarred,
  placesOf,
  put,
  type Touched,
} from "./touched.ts";

/**
 * Expands an ask. A command line becomes its commands, the directories outside the workspace that they reach, the files
 * inside that they read or write, and the scripts that they run; any other ask stays as it is.
 */
export async function expand(
  ask: ExpandedAsk,
  files: Files,
  allowed: Allowed,
  home: string,
  containment?: Containment & { registries: readonly string[] },
): Promise<ExpandedAsk[]> {
  if (ask.permission !== "bash") return [ask];
  const touched = createTouched(allowed, ask.isConfined === true);
  const programs = new Set<string>();
  const repositories = new Set<string>();
  const pushes: PlacedPush[] = [];
  let runsMore = false;
  const byPlace = new Map<string, ExpandedAsk>();
  const pipelines = new Map<string, string>();
  const readings = new Map<string, LineReading>(ask.readings);
  const lines = ask.patterns.map((line) => {
    const reading = readings.get(line) ?? { commands: readCommands(line) };
    readings.set(line, reading);
    return { line, ...reading };
  });
  const isCalm = lines.every(({ commands }) => commands.every(leavesRemotes));
  const place = ({ directory }: Command) => directoryOf(directory, ask.cwd ?? "/", files);
  for (const { line, commands } of lines) {
    const isFed = commands.some(({ pipeline }) => pipeline !== undefined);
    const made = await madeNames(commands, place, files.list);
    for (const command of commands) {
      if (command.pipeline) pipelines.set(command.text, command.pipeline.text);
      const cwd = await place(command);
      const { top, problem } = await repositoriesOf(command, cwd, repositories, files);
      const push = isCalm && top !== undefined ? pushOf(command) : undefined;
      if (push && top !== undefined) pushes.push({ top, ...push });
      const alwaysAsk =
        problem ?? (await foreignSource(command, cwd, files)) ?? (await nameCaution(command, place, made, files.list));
      const key = JSON.stringify([cwd, alwaysAsk]);
      const before = byPlace.get(key) ?? { ...ask, patterns: [], line, cwd };
      byPlace.set(key, {
        ...before,
        patterns: [...new Set([...before.patterns, command.text])],
        ...(alwaysAsk !== undefined && { alwaysAsk }),
      });
      const placed = { cwd, top, isAlone: isAlone(commands) };
      for (const use of command.uses) await addUse(touched, use, command, placed, files, home);
      await addCode(touched, command, isFed, cwd, files);
      runsMore ||= command.code.runsMore;
      for (const program of command.programs) programs.add(program);
    }
  }
  const [first, ...others] = byPlace.values();
  if (!first) return [ask];
  const { cwd: _, ...unplaced } = first;
  const itself = {
    ...(ask.cwd === undefined ? unplaced : first),
    code: {
      ...{ files: [...touched.code.values()], runsMore },
      ...{ unknown: [...touched.unknownCode], repositories: [...repositories], pushes },
    },
    programs: [...programs],
  };
  const commands = lines.flatMap((line) => line.commands);
  const places = asksOf(touched);
  const isOutside = async () => (await files.resolve(".", ask.cwd ?? "/").catch(() => undefined))?.external ?? true;
  const held =
    containment &&
    contain(
      {
        ...{ commands, lines: [itself, ...others], touched, asks: places },
        ...{ startsOutside: await isOutside(), absent: await absentOf(touched.outside, files) },
      },
      containment,
    );
  // Only there their code runs behind the sandbox alone.
  const registries = held?.contained === true ? containment?.registries : undefined;
  const risks = mergeRisks(
    lines.flatMap(({ commands, risks }) =>
      registries ? risksOfCommands(commands, registries) : (risks ?? risksOfCommands(commands)),
    ),
  );
  return [...(held?.asks ?? places), itself, ...others].map((found) => ({
    ...found,
    ...factsOfCall(ask),
    ...(risks.length > 0 && { risks }),
    ...(held && { contained: held.contained }),
    ...(found.permission === "bash" && { readings, ...(pipelines.size > 0 && { pipelines }) }),
  }));
}

/** Returns the directories that do not exist. */
async function absentOf(directories: ReadonlySet<string>, { resolve }: Files): Promise<Set<string>> {
  const found = [...directories].map(async (path) => {
    const place = await resolve(path, "/").catch(() => undefined);
    return place && !place.isDirectory ? [path] : [];
  });
  return new Set((await Promise.all(found)).flat());
}

/** Checks if a line is understood as one command that runs no other one. */
const isAlone = ([first, ...others]: readonly Command[]) =>
  others.length === 0 && first?.opaque === undefined && first?.inner.length === 0;

/** Finds the repository of the directory of a command, and adds it with those that its options name. */
async function repositoriesOf(
  { programs, uses }: Command,
  cwd: string,
  found: Set<string>,
  files: Files,
): Promise<FoundRepository> {
  if (!programs.some(isGit) && !uses.some(({ within }) => within !== undefined)) return {};
  const own = await repositoryAt(cwd, files);
  const named = uses.flatMap(({ within }) => within?.at ?? []);
  const places = [...new Set(named)].map(async (at) => repositoryAt(await directoryOf(at, cwd, files), files));
  const all = [own, ...(await Promise.all(places))];
  for (const { top } of all) if (top !== undefined) found.add(top);
  return { ...own, ...all.find(({ problem }) => problem !== undefined) };
}

async function foreignSource({ uses }: Command, cwd: string, files: Files): Promise<string | undefined> {
  for (const { path, within } of uses) {
    if (within?.as !== "source" || !canBePath(path)) continue;
    const place = await files.resolve(path, cwd).catch(() => undefined);
    if (place?.isDirectory) return `reaches ${path}, a repository in a directory`;
  }
  return undefined;
}

async function directoryOf(directory: string, cwd: string, { resolve }: Files): Promise<string> {
  if (directory === "") return cwd;
  return (await resolve(directory, cwd).catch(() => undefined))?.absolute ?? join(cwd, directory);
}

/** Adds a path that a command names. */
async function addUse(
  touched: Touched,
  use: Use,
  { opaque }: Command,
  placed: GitPlace,
  files: Files,
  home: string,
): Promise<void> {
  const { cwd } = placed;
  if (harmlessFiles.has(use.path) || !canBePath(use.path) || use.within?.as === "source") return;
  if (use.within) return await addInRepository(touched, use, use.within, placed, files);
  const isExpanded = opaque !== undefined || use.home === true;
  const path = isExpanded ? use.path.replace(/^(~|\$HOME|\$\{HOME\})(?=\/|$)/, home) : use.path;
  const paths = use.glob ? await pathsOf(path, cwd, files.list) : [path];
  // Too many matches to judge: ask for their directory, inside the workspace or not.
  if (paths === undefined) touched.outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
  for (const found of paths ?? []) {
    const one = use.ends ? pathBeside(found, use.ends) : found;
    const place = await files.resolve(one, cwd).catch(() => undefined);
    const store = place && use.as !== "write" ? topOfObjects(place.absolute) : undefined;
    if (store !== undefined) await addObjects(touched, "history", {}, { ...placed, top: store }, files);
    const isBarred = place && use.as === "may" && (await isBarredFile(place, touched, files));
    if (place) put(touched, place, isBarred ? { ...use, as: "read" } : use);
    else touched.outside.add(join(cwd, dirname(one)));
    if (!place || place.external) continue;
    if (use.below && place.isDirectory) await addBelow(touched, place, use, files);
    // A copy of a directory to a name that does not exist yet gets that name.
    for (const { from, to } of use.trees ?? [])
      await addCopies(touched, place, { from, to: place.isDirectory ? to : "" }, cwd, files);
  }
}

const harmlessFiles = new Set(["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", ""]);

/** The directory of a command, and the top directory of its repository. */
interface GitPlace {
  cwd: string;
  /** Absent outside of repositories. */
  top: string | undefined;
  /** True if the line has no other command. */
  isAlone: boolean;
}

/** Checks for a file that exists and that rules restrict: a word that names it is a path, although it has no dot or slash. */
async function isBarredFile(place: ExpandPlace, { allowed }: Touched, { list }: Files): Promise<boolean> {
  if (place.isDirectory || allowed.read === undefined || allowed.read(place)) return false;
  const name = basename(place.absolute);
  return (await list(dirname(place.absolute), [name])).some((entry) => entry.name === name);
}

/** Adds the paths that git finds by itself: in the top directory, or all of the repository. */
async function addInRepository(
  touched: Touched,
  use: Use,
  repository: Repository,
  from: GitPlace,
  files: Files,
): Promise<void> {
  const placed = repository.at === undefined ? from : await placedAt(repository.at, from, files);
  const { cwd, top } = placed;
  const { objects } = repository;
  // Outside of a repository git prints and changes nothing, unless it is to use plain files.
  if (top === undefined && !repository.untracked) return;
  if (objects !== undefined && top !== undefined)
    await addObjects(touched, objects, repository, { ...placed, top }, files);
  if (repository.as === "objects") return;
  const { within: _, ...plain } = use;
  const found: ExpandPlace[] = [];
  if (repository.as === "top") {
    const path = join(top ?? cwd, use.path);
    const named = await placesOf([cwd, path], cwd, files);
    const [place] = named;
    found.push(...named.slice(1));
    // Where a link stands today, the history may hold a file.
    if (place && top !== undefined) put(touched, placeInHistory({ top, cwd: place }, path), plain);
  }
  for (const limit of repository.limits ?? []) {
    const names = (await files.list(resolve(cwd, dirname(limit)), [basename(limit)])).map(({ name }) => name);
    if (/^\.*$/.test(basename(limit)) || names.includes(basename(limit)))
      found.push(...(await placesOf([limit], cwd, files)));
  }
  const isAll = repository.as === "whole" && found.length === 0;
  const whole = isAll ? await placesOf([top ?? cwd], cwd, files) : [];
  // A repository that begins outside the workspace: what is below this directory.
  if (whole.some(({ external }) => external)) whole.splice(0, 1, ...(await placesOf([cwd], cwd, files)));
  const tracked = top !== undefined && isAll && !repository.untracked ? await files.tracked?.(top) : undefined;
  for (const place of [...found, ...whole]) {
    if (!isAll) put(touched, place, plain);
    if (place.isDirectory && !place.external)
      await addBelow(touched, place, plain, files, isAll, tracked && { top: top ?? cwd, tracked });
  }
}

/**
 * Adds the names of git's objects that rules do not allow to read: those below the given paths, and all if none is a path, unless
 * a revision stands before each. The content of objects is out of reach of the sandbox, so that these asks are all that protects it.
 */
async function addObjects(
  touched: Touched,
  objects: GitObjects,
  { as, limits = [] }: Pick<Partial<Repository>, "as" | "limits">,
  { cwd, top, isAlone }: GitPlace & { top: string },
  files: Files,
): Promise<void> {
  const may = touched.allowed.read;
  if (!may || !files.gitNames || (objects === "restored" && isAlone)) return;
  const [place] = await placesOf([cwd], cwd, files);
  if (place === undefined) return;
  const names = await files.gitNames(top);
  const places = { top, cwd: place };
  const topPlace = placeInHistory(places, top);
  const hinted = names.select(objects, touched.allowed.readHints(topPlace));
  const problem = names.problem(objects);
  if (problem !== undefined || hinted.length > maxJudged) {
    const why = problem ?? `whose history names ${hinted.length} files that rules may not allow to read`;
    touched.read.set(top, { ...topPlace, alwaysAsk: `is a repository ${why}: the command may read each of its files` });
    return;
  }
  const barred = hinted.filter((name) => !may(placeInHistory(places, join(top, name))));
  // A word whose value is not known limits nothing.
  const isKnown = limits.every((limit) => !/[$`]/.test(limit));
  const ofRevisions = as === "objects" && limits.length > 0;
  const limited = isKnown ? namesBelow(barred, limits, places, ofRevisions) : barred;
  const reached = limited ?? (ofRevisions || (await anyExists(limits, cwd, files)) ? [] : barred);
  if (reached.length > maxBarred) {
    const why = `is a repository whose history names ${reached.length} files that rules do not allow to read`;
    touched.read.set(top, { ...topPlace, alwaysAsk: why });
    return;
  }
  for (const name of reached) {
    const found = placeInHistory(places, join(top, name));
    touched.read.set(found.absolute, found);
  }
}

/** The options of git lead to the directory behind a link. */
async function placedAt(at: string, { cwd: from, isAlone }: GitPlace, files: Files): Promise<GitPlace> {
  const cwd = await directoryOf(at, from, files);
  return { cwd, top: (await repositoryAt(cwd, files)).top, isAlone };
}

/** Checks if one of the words is the name of a file or directory, to which git then limits itself. */
async function anyExists(words: readonly string[], cwd: string, files: Files): Promise<boolean> {
  for (const word of words) {
    if (word === "") continue;
    const isDirectory = /^\.+$/.test(basename(word));
    if (isDirectory && (await files.list(resolve(cwd, word))).length > 0) return true;
    const listed = await files.list(resolve(cwd, dirname(word)), [basename(word)]);
    if (listed.some(({ name }) => name === basename(word))) return true;
  }
  return false;
}

/** More would take longer than a call may hold up others. */
const maxJudged = 5_000;

/** Paths of a repository, in the forms that rules match. */
interface RepositoryPlaces {
  /** The top directory of the repository. */
  top: string;
  /** The working directory of the command. */
  cwd: Pick<ExpandPlace, "absolute" | "pattern" | "external">;
}

/**
 * Returns the place of a path below the repository without looking at the disk: a link that stands there today has nothing to
 * do with the file of the same name in the history.
 */
function placeInHistory({ cwd }: RepositoryPlaces, absolute: string): ExpandPlace {
  const below = cwd.pattern === "." ? "" : `/${cwd.pattern}`;
  const isInside = !cwd.external && cwd.absolute.endsWith(below);
  const root = cwd.absolute.slice(0, cwd.absolute.length - below.length);
  const isShort = isInside && (absolute === root || absolute.startsWith(`${root}/`));
  // The ask is about content in git, not about a directory outside the workspace.
  const plain = { absolute, external: false, isDirectory: false };
  return { ...plain, pattern: isShort ? relative(root, absolute) || "." : absolute };
}

/** Selects the names below the given paths, which of revisions are relative to the top; undefined if no name is below any of them. */
function namesBelow(
  names: readonly string[],
  limits: readonly string[],
  { top, cwd }: RepositoryPlaces,
  ofRevisions: boolean,
): string[] | undefined {
  const bases = ofRevisions ? [cwd.absolute, top] : [cwd.absolute];
  const starts = bases.flatMap((base) => limits.map((limit) => relative(top, resolve(base, limit))));
  const found = names.filter((name) =>
    starts.some((start) => start === "" || name === start || name.startsWith(`${start}/`)),
  );
  return found.length === 0 ? undefined : found;
}

/** A repository that git finds; `problem` says why it is none that a person set up. */
interface FoundRepository {
  top?: string;
  problem?: string;
}

/** Finds the repository of a directory as git does. */
async function repositoryAt(cwd: string, files: Pick<Files, "list">): Promise<FoundRepository> {
  for (let at = cwd; ; at = dirname(at)) {
    const names = new Set((await files.list(at, repositoryNames)).map(({ name }) => name));
    if (names.has(".git")) return { top: at };
    if (isBare(names)) return { problem: `runs in ${at}, which git takes for a repository although it is no .git` };
    if (at === "/" || at === ".") return {};
  }
}

const repositoryNames: readonly string[] = [".git", "HEAD", "objects", "refs", "commondir"];

/** A directory with these three is a repository for git, with settings that run programs. */
function isBare(names: ReadonlySet<string>): boolean {
  return names.has("HEAD") && (names.has("objects") || names.has("refs") || names.has("commondir"));
}

/** Returns the top directory of the repository in whose store of objects a path lies; undefined for other paths. */
function topOfObjects(path: string): string | undefined {
  return /^(.*?)\/\.git\/(?:.*\/)?objects(?:\/|$)/s.exec(path)?.[1];
}
