import { dirname, join, relative } from "node:path";
import type { ExpandedAsk } from "../model.ts";
import type { CodeFile, PlacedCode } from "./code.ts";
import type { Command } from "./command.ts";
import type { Below, GitObjects, Use } from "./effects.ts";
import { type ListDirectory, nameMatcher, pathsOf } from "./glob.ts";

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
  /** Finds the names of the objects in the repository of a top directory; absent if that is not known. */
  gitNames?(top: string): Promise<GitNames>;
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
  /** Returns the substrings of the names below a directory that rules may not allow to read; see `readDoubts`. */
  readHints(directory: Pick<ExpandPlace, "absolute" | "pattern">): readonly string[] | undefined;
}

/** Collects the paths that the commands of a line access. */
export interface Touched {
  readonly allowed: Allowed;
  /** True if the sandbox hides what the commands find by themselves in the workspace and may not read. */
  readonly isConfined: boolean;
  readonly outside: Set<string>;
  /** Files outside the workspace that the commands access. */
  readonly outsideFiles: Set<string>;
  readonly read: Map<string, ExpandPlace>;
  readonly changed: Map<string, ExpandPlace>;
  readonly written: Map<string, ExpandPlace>;
  /** Files that the commands run or read as code, by canonical path. */
  readonly code: Map<string, PlacedCode>;
  /** The reasons why not all code is known. */
  readonly unknownCode: Set<string>;
}

/** Creates an empty collection. */
export function createTouched(allowed: Allowed, isConfined: boolean): Touched {
  return {
    allowed,
    isConfined,
    outside: new Set(),
    outsideFiles: new Set(),
    read: new Map(),
    changed: new Map(),
    written: new Map(),
    code: new Map(),
    unknownCode: new Set(),
  };
}

/** Adds the access to one resolved path. */
export function put(touched: Touched, place: ExpandPlace, use: Use): void {
  const { outside, read, changed, written } = touched;
  if (place.external) outside.add(place.isDirectory ? place.absolute : dirname(place.absolute));
  if (place.external) touched.outsideFiles.add(place.absolute);
  const isRead = use.as === "read" || (use.as === "may" && isLikeFile(use.path));
  // A glob is no name: what it finds is hidden.
  if (isRead && !(touched.isConfined && use.glob)) read.set(place.absolute, place);
  if (use.as === "change") changed.set(place.absolute, place);
  if (use.as !== "write") return;
  const targets = place.isDirectory && use.names ? use.names.map((name) => within(place, name)) : [place];
  for (const target of targets) {
    written.set(target.absolute, target);
    if (target.external) touched.outsideFiles.add(target.absolute);
  }
}

/** Adds the files below a directory inside the workspace that rules restrict. Outside, the ask for the directory covers them. */
export async function addBelow(
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
  // Links may lead out of the workspace, where nothing is hidden.
  const isHidden = touched.isConfined && !changes;
  if (isHidden && !below.links) return;
  const found = await filesBelow(directory.absolute, below, files.list);
  const barred = (isHidden ? [] : found.files)
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
    if (place) put(touched, place, { path, glob: isHidden, as: changes ? "change" : "read" });
  }
}

/** Adds the files that a copy of a directory writes, where rules restrict them. */
export async function addCopies(
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

/** Adds the files that a command runs or reads as code; `fed`: the line feeds its program by a pipe. */
export async function addCode(
  { code, unknownCode }: Touched,
  { code: own, uses, opaque, text }: Command,
  isFed: boolean,
  cwd: string,
  files: Files,
): Promise<void> {
  if (opaque !== undefined) unknownCode.add("the line is not understood");
  for (const [spelling, why] of elsewhere) if (spelling.test(text)) unknownCode.add(why);
  if (own.runsMore && (await files.resolve(".", cwd).catch(() => undefined))?.external)
    unknownCode.add(`code in ${cwd}, which is outside the workspace`);
  const fed = uses.filter(({ as, below }) => as === "read" && (isFed || (own.runsMore && below !== undefined)));
  const named: CodeFile[] = [...own.files, ...fed.map(({ path, glob }): CodeFile => ({ path, glob, use: "script" }))];
  for (const { path, glob, use, scripts, isShell } of named) {
    if (!canBePath(path)) continue;
    const paths = (glob ? await pathsOf(path, cwd, files.list) : [path])?.filter((one) => !glob || one !== path);
    if (paths === undefined) unknownCode.add(`${path} stands for too many files`);
    for (const place of await placesOf(paths ?? [], cwd, files)) {
      const below = fed.find((one) => one.path === path)?.below;
      const { absolute, pattern, external } = place;
      if (!place.isDirectory)
        code.set(absolute, {
          ...(code.get(absolute) ?? { absolute, pattern, external, use }),
          ...(scripts && { scripts: [...(code.get(absolute)?.scripts ?? []), ...scripts] }),
          ...(isShell && { isShell }),
        });
      else if (below) {
        const found = await filesBelow(absolute, below, files.list);
        if (found.more || found.files.length > maxBarred) unknownCode.add(`${path} holds too many files`);
        else
          for (const { absolute, pattern, external } of found.files.map((name) => within(place, name)))
            code.set(absolute, code.get(absolute) ?? { absolute, pattern, external, use });
      }
    }
  }
}

/** Words by which a line runs code that is not searched for. */
const elsewhere: readonly (readonly [RegExp, string])[] = [
  [/(^|[\s'"])GIT_(COMMON_)?DIR=/, "hooks and settings of the repository that GIT_DIR names"],
  [/(^|[\s'"])PATH=/, "programs that the line finds by another PATH"],
  [/\s-(exec|ok)dir\s/, "code in the directories that find enters"],
];

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

const everything: Below = { hidden: true, links: false };
/** Maximum number of files that rules restrict and that are judged one by one. */
export const maxBarred = 100;

/** Checks if a text is short enough to be a path for the kernel. */
export function canBePath(text: string): boolean {
  return (
    Buffer.byteLength(text) < 4_096 &&
    !text.includes("\0") &&
    text.split("/").every((name) => Buffer.byteLength(name) <= 255)
  );
}

/** Resolves paths; leaves out those that cannot be resolved. */
export async function placesOf(paths: readonly string[], cwd: string, files: Files): Promise<ExpandPlace[]> {
  const places = await Promise.all(paths.map((path) => files.resolve(path, cwd).catch(() => undefined)));
  return places.filter((place) => place !== undefined);
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

/** Files and links below a directory, by their path relative to it. */
interface FoundFiles {
  files: string[];
  links: string[];
  /** There are more entries than were searched. */
  more: boolean;
}

const maxEntries = 100_000;

/** Lists the files and links below a directory, as far as a command reaches them. */
async function filesBelow(directory: string, reach: Below, list: ListDirectory): Promise<FoundFiles> {
  const found: FoundFiles = { files: [], links: [], more: false };
  const patterns = (reach.only ?? []).map(nameMatcher);
  const isReached = (name: string) => patterns.length === 0 || patterns.some((meets) => meets(name));
  const ahead = [""];
  let seen = 0;
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const { name, isDirectory, isLink } of await list(join(directory, at))) {
      seen += 1;
      if (seen > maxEntries) return { ...found, more: true };
      if (name.startsWith(".") && !reach.hidden) continue;
      const path = at === "" ? name : `${at}/${name}`;
      if (isDirectory && !reach.except?.includes(name)) ahead.push(path);
      if (isLink && reach.links) found.links.push(path);
      if (!isDirectory && !isLink && isReached(name)) found.files.push(path);
    }
  }
  return found;
}

/** The names that git's objects have in a repository. */
export interface GitNames {
  /**
   * Returns the names, relative to the top directory, that contain one of the substrings in lower case or are not plain
   * (`readDoubts`); all names without substrings.
   */
  select(objects: GitObjects, hints: readonly string[] | undefined): readonly string[];
  /** Returns the reason why the names are not all known, a clause about the repository; undefined if they are. */
  problem(objects: GitObjects): string | undefined;
}
