import { basename, dirname, join, relative, resolve } from "node:path";
import type { GitObjects, Repository, Use } from "./effects.ts";
import { addBelow, type ExpandPlace, type Files, maxBarred, placesOf, put, type Touched } from "./touched.ts";

/** The directory of a command, and the top directory of its repository. */
export interface GitPlace {
  cwd: string;
  /** Absent outside of repositories. */
  top: string | undefined;
  /** True if the line has no other command. */
  isAlone: boolean;
}

/** Adds the paths that git finds by itself: in the top directory, or all of the repository. */
export async function addInRepository(
  touched: Touched,
  use: Use,
  repository: Repository,
  from: GitPlace,
  files: Files,
): Promise<void> {
  const placed = repository.at === undefined ? from : await placedAt(resolve(from.cwd, repository.at), from, files);
  const { cwd, top } = placed;
  const { objects } = repository;
  // Outside of a repository git prints and changes nothing, unless it is to use plain files.
  if (top === undefined && !repository.untracked) return;
  if (objects !== undefined && top !== undefined)
    await addObjects(touched, objects, repository.limits ?? [], { ...placed, top }, files);
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
 * Adds the names of git's objects that rules do not allow to read: those below the given paths, all if none is a path. The
 * content of objects is out of reach of the sandbox, so that these asks are all that protects it.
 */
export async function addObjects(
  touched: Touched,
  objects: GitObjects,
  limits: readonly string[],
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
  const limited = isKnown ? namesBelow(barred, limits, places) : barred;
  const reached = limited ?? ((await anyExists(limits, cwd, files)) ? [] : barred);
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

async function placedAt(cwd: string, { isAlone }: GitPlace, files: Files): Promise<GitPlace> {
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

/** Selects the names below the given paths; undefined if no name is below any of them. */
function namesBelow(
  names: readonly string[],
  limits: readonly string[],
  { top, cwd }: RepositoryPlaces,
): string[] | undefined {
  const starts = limits.map((limit) => relative(top, resolve(cwd.absolute, limit)));
  const found = names.filter((name) =>
    starts.some((start) => start === "" || name === start || name.startsWith(`${start}/`)),
  );
  return found.length === 0 ? undefined : found;
}

/** Finds the repository of a directory as git does; `problem` says why it is none that a person set up. */
export async function repositoryAt(
  cwd: string,
  files: Pick<Files, "list">,
): Promise<{ top?: string; problem?: string }> {
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
export function topOfObjects(path: string): string | undefined {
  return /^(.*?)\/\.git\/(?:.*\/)?objects(?:\/|$)/s.exec(path)?.[1];
}
