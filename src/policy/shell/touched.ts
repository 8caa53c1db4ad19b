import { basename, dirname, join, relative, resolve } from "node:path";
import type { ExpandedAsk } from "../model.ts";
import { filesBelow } from "./below.ts";
import type { Command } from "./command.ts";
import type { Below, Repository, Use } from "./effects.ts";
import { type ListDirectory, pathsOf } from "./glob.ts";

/** A path with links and `..` resolved. */
export interface ExpandPlace {
  absolute: string;
  pattern: string;
  external: boolean;
  isDirectory: boolean;
  /** The reason to ask each time, although rules allow the path. */
  alwaysAsk?: string;
}

/** Access to the files that commands name. */
export interface Files {
  /** Checks if git tracks a path of the repository in a directory; absent if that is not known. */
  tracked?(directory: string): Promise<((path: string) => boolean) | undefined>;
  /** Resolves a path; throws if it cannot be resolved. */
  resolve(path: string, cwd: string): Promise<ExpandPlace>;
  list: ListDirectory;
}

/** Filters the files that rules do not restrict; undefined if they restrict none. */
export type MayAccess = ((file: Pick<ExpandPlace, "absolute" | "pattern">) => boolean) | undefined;

/** The files that rules allow to read, and to edit, without an ask; and those that they do not deny to edit. */
export interface Allowed {
  read: MayAccess;
  edit: MayAccess;
  notDeniedEdit: MayAccess;
}

/** Collects the paths that the commands of a line access. */
export interface Touched {
  readonly allowed: Allowed;
  readonly outside: Set<string>;
  readonly read: Map<string, ExpandPlace>;
  readonly changed: Map<string, ExpandPlace>;
  readonly written: Map<string, ExpandPlace>;
  /** Scripts that the commands run. */
  readonly scripts: Set<string>;
}

/** Creates an empty collection. */
export function createTouched(allowed: Allowed): Touched {
  return {
    allowed,
    outside: new Set(),
    read: new Map(),
    changed: new Map(),
    written: new Map(),
    scripts: new Set(),
  };
}

function put({ outside, read, changed, written }: Touched, place: ExpandPlace, use: Use): void {
  if (place.external) outside.add(place.isDirectory ? place.absolute : dirname(place.absolute));
  if (use.as === "read" || (use.as === "may" && isLikeFile(use.path))) read.set(place.absolute, place);
  if (use.as === "change") changed.set(place.absolute, place);
  if (use.as !== "write") return;
  const targets = place.isDirectory && use.names ? use.names.map((name) => within(place, name)) : [place];
  for (const target of targets) written.set(target.absolute, target);
}

/** Adds a path that a command names. */
export async function addUse(
  touched: Touched,
  use: Use,
  { opaque }: Command,
  { cwd, top }: Placed,
  files: Files,
  home: string,
): Promise<void> {
  if (harmlessFiles.has(use.path) || !canBePath(use.path) || use.within?.as === "source") return;
  if (use.within) return await addInRepository(touched, use, use.within, { cwd, top }, files);
  const path = opaque === undefined ? use.path : use.path.replace(/^(~|\$HOME|\$\{HOME\})(?=\/|$)/, home);
  const paths = use.glob ? await pathsOf(path, cwd, files.list) : [path];
  // Too many matches to judge: ask for their directory, inside the workspace or not.
  if (paths === undefined) touched.outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
  for (const one of paths ?? []) {
    const place = await files.resolve(one, cwd).catch(() => undefined);
    if (place) put(touched, place, use);
    else touched.outside.add(join(cwd, dirname(one)));
    if (!place || place.external) continue;
    if (use.below && place.isDirectory) await addBelow(touched, place, use, files);
    // A copy of a directory to a name that does not exist yet gets that name.
    for (const { from, to } of use.trees ?? [])
      await addCopies(touched, place, { from, to: place.isDirectory ? to : "" }, cwd, files);
  }
}

/** Adds the paths that git finds by itself: in the top directory, or all of the repository. */
async function addInRepository(
  touched: Touched,
  use: Use,
  repository: Repository,
  { cwd, top }: Placed,
  files: Files,
): Promise<void> {
  // Outside of a repository git prints and changes nothing, unless it is to use plain files.
  if (top === undefined && !repository.untracked) return;
  const { within: _, ...plain } = use;
  const found: ExpandPlace[] = [];
  if (repository.as === "top") found.push(...(await placesOf([join(top ?? cwd, use.path)], cwd, files)));
  for (const limit of repository.limits ?? []) {
    const names = (await files.list(resolve(cwd, dirname(limit)))).map(({ name }) => name);
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

/** Adds the files below a directory inside the workspace that rules restrict. Outside, the ask for the directory covers them. */
async function addBelow(
  touched: Touched,
  directory: ExpandPlace,
  { as, below = everything }: Use,
  files: Files,
  isAll = false,
  known?: { top: string; tracked: (path: string) => boolean },
): Promise<void> {
  const changes = as === "change";
  const may = changes ? (isAll ? touched.allowed.notDeniedEdit : touched.allowed.edit) : touched.allowed.read;
  if (!may) return;
  const found = await filesBelow(directory.absolute, below, files.list);
  const barred = found.files
    .map((name) => within(directory, name))
    .filter((file) => !may(file) && (!known || known.tracked(relative(known.top, file.absolute))));
  const places = changes ? touched.changed : touched.read;
  if (found.more || barred.length > maxBarred) {
    places.set(directory.absolute, { ...directory, alwaysAsk: "holds more than can be judged file by file" });
    return;
  }
  for (const file of barred) places.set(file.absolute, file);
  for (const path of found.links) {
    const place = await files.resolve(path, directory.absolute).catch(() => undefined);
    if (place) put(touched, place, { path, glob: false, as: changes ? "change" : "read" });
  }
}

/** Adds the files that a copy of a directory writes, where rules restrict them. */
async function addCopies(
  touched: Touched,
  into: ExpandPlace,
  { from, to }: { from: string; to: string },
  cwd: string,
  files: Files,
): Promise<void> {
  if (!touched.allowed.edit || !canBePath(from)) return;
  const source = await files.resolve(from, cwd).catch(() => undefined);
  if (!source?.isDirectory) return;
  const found = await filesBelow(source.absolute, everything, files.list);
  const target = to === "" ? into : within(into, to);
  const barred = found.files.map((name) => within(target, name)).filter((file) => !touched.allowed.edit?.(file));
  if (found.more || barred.length > maxBarred) {
    touched.written.set(target.absolute, { ...target, alwaysAsk: "would hold more than can be judged file by file" });
    return;
  }
  for (const file of barred) touched.written.set(file.absolute, file);
}

/** Adds a script that a command runs. */
export async function addScript({ scripts }: Touched, path: string, cwd: string, files: Files): Promise<void> {
  const place = await files.resolve(path, cwd).catch(() => undefined);
  if (place) scripts.add(place.absolute);
}

/** Returns the asks for what was collected. */
export function asksOf({ outside, read, changed, written }: Touched): ExpandedAsk[] {
  const directories = [...outside];
  const inside = (places: Map<string, ExpandPlace>) => [...places.values()].filter(({ external }) => !external);
  const files = (permission: string, places: readonly ExpandPlace[], restricts?: true): ExpandedAsk[] =>
    [...Map.groupBy(places, ({ alwaysAsk }) => alwaysAsk)].map(([alwaysAsk, alike]) => ({
      permission,
      patterns: alike.map(({ pattern }) => pattern),
      paths: alike.map(({ absolute }) => absolute),
      ...(restricts && { restricts }),
      ...(alwaysAsk !== undefined && { alwaysAsk }),
    }));
  const asks: ExpandedAsk[] = [
    {
      permission: "external_directory",
      patterns: directories.map((directory) => (directory === "/" ? "/*" : `${directory}/*`)),
      paths: directories,
    },
    ...files("read", inside(read), true),
    ...files("edit", inside(changed), true),
    ...files("edit", [...written.values()]),
  ];
  return asks.filter(({ patterns }) => patterns.length > 0);
}

/** The directory of a command, and the top directory of its repository. */
interface Placed {
  cwd: string;
  /** Absent outside of repositories. */
  top: string | undefined;
}

async function placesOf(paths: readonly string[], cwd: string, files: Files): Promise<ExpandPlace[]> {
  const places = await Promise.all(paths.map((path) => files.resolve(path, cwd).catch(() => undefined)));
  return places.filter((place) => place !== undefined);
}

const everything: Below = { hidden: true, links: false };
const maxBarred = 100;
const harmlessFiles = new Set(["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", ""]);

/** Checks if a text is short enough to be a path for the kernel. */
export function canBePath(text: string): boolean {
  return (
    Buffer.byteLength(text) < 4_096 &&
    !text.includes("\0") &&
    text.split("/").every((name) => Buffer.byteLength(name) <= 255)
  );
}

/** Checks if a word is probably a file, and not another kind of name. */
function isLikeFile(path: string): boolean {
  return /[./]/.test(path);
}

function within(directory: ExpandPlace, name: string): ExpandPlace {
  return {
    ...directory,
    absolute: join(directory.absolute, name),
    pattern: directory.pattern === "." ? name : join(directory.pattern, name),
    isDirectory: false,
  };
}
