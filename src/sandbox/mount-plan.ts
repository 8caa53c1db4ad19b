import { readdirSync } from "node:fs";
import { basename, dirname } from "node:path";
import { isWithin } from "../core/paths.ts";
import type { FileUse } from "../policy/file-decisions.ts";
import { liveNames } from "../policy/protected-files.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import { isGitCode, isObjectStore, pathInGitDirectory } from "./git-directories.ts";
import type { Covered } from "./layers.ts";
import { createNameFilter, type DirectoryNames, type NameFilter, type NameTree, nameHits } from "./name-tree.ts";
import type { PlanInput, PlanRoot } from "./plan-input.ts";

/** Mounts by which the kernel enforces what rules say about files. All paths are canonical, and exist but for `absent`. */
export interface MountPlan {
  /** Directories that are replaced by an empty one, since nothing below may be read. */
  emptied: Covered[];
  /** Files that are replaced by one that nobody can read. */
  masked: Covered[];
  /** Files and directories that cannot be changed. */
  readOnly: Covered[];
  /** Paths that do not exist and cannot be made, directly below existing directories. */
  absent: Covered[];
  /** Directories that cannot be renamed: a rule that restricts a file below names them. */
  pins: string[];
  /** Roots below which only `shown` exists, since rules allow to read only some files. */
  closed: Covered[];
  shown: string[];
  /** Roots that are read-only but for `writable`, since rules deny to edit all but some files. */
  sealed: Covered[];
  writable: string[];
  /** Numbers of files that may not be read, or changed, if they are too many to cover one by one; then only the first are. */
  excess: Record<FileUse, number>;
  /** True if there are directories that are not searched, since they are too many or their names are not UTF-8; what is in them is not covered. */
  isPartial: boolean;
}

/** Plans the mounts of one command. Depends on its input alone. */
export function planMounts(input: PlanInput): MountPlan {
  const plan: MountPlan = {
    ...{ emptied: [], masked: [], readOnly: [], absent: [], pins: [] },
    ...{ closed: [], shown: [], sealed: [], writable: [] },
    excess: { read: 0, edit: 0 },
    isPartial: false,
  };
  const searched = { directories: 0 };
  for (const root of input.roots) {
    // Code below another root is judged with that, unless its rules close it.
    const above = input.roots.find((other) => other !== root && isWithin(root.absolute, other.absolute));
    if (root.isCode && above && !plan.closed.some(({ path }) => path === above.absolute)) continue;
    planRoot(root.isCode ? { ...input, decisions: input.codeDecisions } : input, plan, root, searched);
  }
  if (plan.masked.length > input.maxMasks) coverDirectories(input, plan);
  if (plan.masked.length > input.maxMasks) {
    plan.excess.read = plan.masked.length;
    plan.masked = plan.masked.slice(0, input.maxMasks);
  }
  if (plan.readOnly.length > input.maxMasks) {
    plan.excess.edit = plan.readOnly.length;
    // What programs take commands from counts more than what rules deny.
    const depth = ({ path }: Covered) => path.split("/").length;
    plan.readOnly = plan.readOnly.sort((one, other) => depth(one) - depth(other)).slice(0, input.maxMasks);
  }
  plan.pins = pinsOf(input, plan);
  return withinShown(plan);
}

/** Removes what concerns paths that do not exist inside, since nothing of a closed root does but what is shown. */
function withinShown(plan: MountPlan): MountPlan {
  const exists = (path: string) =>
    !plan.closed.some((root) => path.startsWith(`${root.path}/`)) ||
    plan.shown.some((shown) => path === shown || path.startsWith(`${shown}/`));
  const shownBelow = (directory: string) => plan.shown.filter((path) => path.startsWith(`${directory}/`));
  return {
    ...plan,
    readOnly: plan.readOnly.flatMap((covered) =>
      exists(covered.path) ? [covered] : shownBelow(covered.path).map((path) => ({ ...covered, path })),
    ),
    pins: plan.pins.filter(exists),
    writable: plan.writable.flatMap((path) => (exists(path) ? [path] : shownBelow(path))),
  };
}

/** The walk through one root. */
interface Walk {
  readonly input: PlanInput;
  readonly plan: MountPlan;
  readonly root: PlanRoot;
  readonly filter: NameFilter;
  /** Bits of `nameHits` that this walk checks; the others are covered by a reversed plan. */
  readonly checks: number;
  readonly searched: { directories: number };
}

function planRoot(input: PlanInput, plan: MountPlan, root: PlanRoot, searched: Walk["searched"]): void {
  const { decisions } = input;
  const isReadReversed = decisions.hints("read", root) === undefined;
  const isEditReversed = root.isWritable && decisions.hints("edit", root) === undefined;
  if (isReadReversed) {
    const open = openPaths(root, input.tree, (place) => isReadable(input, place));
    if (!open.isOpen) {
      plan.closed.push({ path: root.absolute, reason: "rules allow to read only some files" });
      plan.shown.push(...open.paths, ...codeBelow(input, root));
    }
  }
  if (isEditReversed) {
    const open = openPaths(root, input.tree, (place) => changeProblem(input, place) === undefined);
    if (!open.isOpen) {
      plan.sealed.push({ path: root.absolute, reason: "rules deny to edit all but some files" });
      plan.writable.push(...open.paths);
    }
  }
  const checks =
    (isReadReversed ? 0 : nameHits.read) |
    (root.isWritable && !isEditReversed ? nameHits.edit | nameHits.protected : 0);
  const isReversed = [...plan.closed, ...plan.sealed].some(({ path }) => path === root.absolute);
  if (root.isWritable && !isReversed) plan.absent.push(...absentPaths(input, root));
  if (checks === 0) return;
  const walk = { input, plan, root, checks, searched, filter: createNameFilter(decisions, root) };
  walkDirectory(walk, root.absolute, 0, checks);
}

/** Lists the other roots below one that hold code. */
const codeBelow = ({ roots }: PlanInput, { absolute }: PlanRoot) =>
  roots.flatMap((root) => (root.isCode && root.absolute.startsWith(`${absolute}/`) ? [root.absolute] : []));

/** Walks a directory. `inherited` are bits of the names above it, `checks` those that are still to check. */
function walkDirectory(walk: Walk, directory: string, inherited: number, checks: number): void {
  const { tree, maxDirectories } = walk.input;
  walk.searched.directories += 1;
  if (walk.searched.directories > maxDirectories) {
    walk.plan.isPartial = true;
    return;
  }
  const listing = tree.list(directory);
  if (listing === undefined) return;
  if (listing.isUnreadable) {
    walk.plan.emptied.push({ path: directory, reason: "what is in it cannot be judged, since it cannot be searched" });
    return;
  }
  const isGit = pathInGitDirectory(`${directory}/`) !== undefined;
  const all = inherited | (isGit ? nameHits.protected : 0);
  const selected = tree.select(directory, walk.filter);
  for (const name of listing.directories) {
    // No argument can name it.
    if (isUndecodable(name)) walk.plan.isPartial = true;
    else visitDirectory(walk, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  }
  const files = all === 0 ? selected.keys() : listing.files;
  for (const name of files) {
    const bits = (all | (selected.get(name) ?? 0)) & checks;
    if (bits !== 0 && (all !== 0 || listing.files.includes(name))) visitFile(walk, `${directory}/${name}`, bits);
  }
}

function visitDirectory(walk: Walk, path: string, hits: number, checks: number): void {
  const { input, plan } = walk;
  if (input.hidden.has(path) || path === walk.root.except || isObjectStore(path)) return;
  const place = rulePlaceOf(walk.root, path);
  const bits = hits & checks;
  let left = checks;
  if (bits & nameHits.read && input.decisions.isClosed("read", place) && !holdsAllowed(input, "read", path)) {
    if (!input.hasTrackedFiles(path)) {
      plan.emptied.push({ path, reason: input.decisions.restriction("read", childOf(place)) ?? "" });
      return;
    }
  }
  const problem = bits & (nameHits.edit | nameHits.protected) ? directoryProblem(input, place) : undefined;
  if (problem !== undefined && !holdsAllowed(input, "edit", path)) {
    plan.readOnly.push({ path, reason: problem });
    left &= ~(nameHits.edit | nameHits.protected);
  }
  // Names that are protected elsewhere are frequent in installed packages, where no program looks for them.
  const isInstalled = packageDirectories.has(basename(path));
  if (left !== 0) walkDirectory(walk, path, hits, isInstalled ? left & ~nameHits.protected : left);
}

function visitFile({ input, plan, root }: Walk, path: string, bits: number): void {
  if (input.hidden.has(path)) return;
  const place = rulePlaceOf(root, path);
  if (bits & nameHits.read && !isReadable(input, place)) {
    if (isUndecodable(path)) plan.isPartial = true;
    plan.masked.push({ path, reason: input.decisions.restriction("read", place) ?? "" });
    return;
  }
  const problem = bits & (nameHits.edit | nameHits.protected) ? changeProblem(input, place) : undefined;
  if (problem !== undefined) plan.readOnly.push({ path, reason: problem });
}

/** Replaces masks of files by an empty directory where a directory holds nothing else. */
function coverDirectories({ tree, hasTrackedFiles }: PlanInput, plan: MountPlan): void {
  const byDirectory = Map.groupBy(plan.masked, ({ path }) => dirname(path));
  for (const [directory, masked] of byDirectory) {
    const listing = tree.list(directory);
    const isWhole = listing?.files.length === masked.length && listing.directories.length === 0;
    const [first] = masked;
    if (!isWhole || masked.length === 1 || first === undefined || hasTrackedFiles(directory)) continue;
    plan.emptied.push({ path: directory, reason: first.reason });
    plan.masked = plan.masked.filter((file) => !masked.includes(file));
  }
}

/** Lists the directories above covered paths that a rule names: renamed, they would lead out of the rule. */
function pinsOf(input: PlanInput, { emptied, masked, readOnly, absent }: MountPlan): string[] {
  const pins = new Set<string>();
  const covered = [
    ...emptied.map(({ path }) => ({ path, access: "read" as const, isDirectory: true })),
    ...masked.map(({ path }) => ({ path, access: "read" as const, isDirectory: false })),
    ...[...readOnly, ...absent].map(({ path }) => ({ path, access: "edit" as const, isDirectory: false })),
  ];
  for (const root of input.roots) {
    const known = new Map<string, boolean>();
    for (const { path, access, isDirectory } of covered) {
      if (!path.startsWith(`${root.absolute}/`)) continue;
      const name = basename(path);
      const key = `${access} ${isDirectory} ${name}`;
      const isFree = known.get(key) ?? isCoveredAnywhere(input, root, name, access, isDirectory);
      known.set(key, isFree);
      if (isFree) continue;
      for (let at = dirname(path); at.length > root.absolute.length; at = dirname(at)) pins.add(at);
    }
  }
  return [...pins].sort();
}

/** Checks if rules restrict a name in each directory, so that its parents may be renamed and moved. */
function isCoveredAnywhere(
  input: PlanInput,
  root: PlanRoot,
  name: string,
  access: FileUse,
  isDirectory: boolean,
): boolean {
  const isProtected = access === "edit" && input.decisions.protection(`${root.absolute}/${name}`) !== undefined;
  if (!isProtected && input.decisions.mayBeExempt(access, isDirectory ? `${name}/${unnamed}` : name)) return false;
  return ["", "other/place/"].every((above) => {
    const place = rulePlaceOf(root, `${root.absolute}/${above}${name}`);
    if (access === "read" && isDirectory) return input.decisions.isClosed("read", place);
    if (access === "read") return !isReadable(input, place);
    return changeProblem(input, place) !== undefined;
  });
}

/** Maximum number of paths of a root that do not exist and are covered: each takes a mount. */
const maxAbsent = 32;

/**
 * Lists paths that do not exist and that a command may not make, directly below existing directories: names that other programs
 * apply at once, and paths that rules name. A root without any entry has none, since programs that set up a project want an empty
 * directory.
 */
function absentPaths(input: PlanInput, root: PlanRoot): Covered[] {
  const { tree, decisions } = input;
  if (isEmpty(tree, root.absolute)) return [];
  const live = liveNames.map((name) => `${root.absolute}/${name}`);
  return [...new Set([...decisions.deniedPaths(root), ...live])]
    .filter((path) => isAbsent(tree, root.absolute, path) && !isFree(input, root, path))
    .flatMap((path) => {
      const place = rulePlaceOf(root, path);
      const reason = changeProblem(input, place) ?? directoryProblem(input, place);
      return reason === undefined ? [] : [{ path, reason }];
    })
    .slice(0, maxAbsent);
}

function isEmpty(tree: NameTree, directory: string): boolean {
  const { directories = [], files = [], links = [] } = tree.list(directory) ?? {};
  return directories.length + files.length + links.length === 0;
}

/** Checks if a path does not exist and its directory does, without any link on the way. */
function isAbsent(tree: NameTree, root: string, path: string): boolean {
  const directory = dirname(path);
  const names = directory
    .slice(root.length + 1)
    .split("/")
    .filter((name) => name !== "");
  let at = root;
  for (const name of names) {
    if (!tree.list(at)?.directories.includes(name)) return false;
    at = `${at}/${name}`;
  }
  const listing = tree.list(directory);
  const name = basename(path);
  return listing !== undefined && ![...listing.directories, ...listing.files, ...listing.links].includes(name);
}

/** Checks if the call may make a path or something below it, or if the path is none of this root. */
function isFree(input: PlanInput, root: PlanRoot, path: string): boolean {
  const { editTrees, allowed, hidden } = input;
  return (
    allowed.edit.has(path) ||
    holdsAllowed(input, "edit", path) ||
    editTrees.some((tree) => isWithin(path, tree) || isWithin(tree, path)) ||
    (root.except !== undefined && isWithin(path, root.except)) ||
    hidden.has(path)
  );
}

/** The parts of a directory that are open: all of it, or these files and directories. */
interface OpenPaths {
  isOpen: boolean;
  paths: string[];
}

/** Maximum number of files and directories that are judged; the others count as closed. */
const maxJudged = 5_000;

/** Objects of git have no names that rules could match: their directory counts as a whole. */
const empty: DirectoryNames = { directories: [], files: [], links: [] };

/**
 * Finds the largest directories below which everything is open, and the open files elsewhere. A directory counts only if a
 * file that is created there would be open, too.
 */
function openPaths(root: ReadPlace, tree: NameTree, isOpen: (place: ReadPlace) => boolean): OpenPaths {
  let judged = 0;
  const judge = (place: ReadPlace) => ++judged <= maxJudged && isOpen(place);
  const visit = (directory: ReadPlace): OpenPaths => {
    if (++judged > maxJudged) return { isOpen: false, paths: [] };
    const listing = isObjectStore(directory.absolute) ? empty : tree.list(directory.absolute);
    if (listing === undefined || listing.isUnreadable) return { isOpen: false, paths: [] };
    const below = (name: string): ReadPlace => ({
      absolute: `${directory.absolute}/${name}`,
      pattern: directory.pattern === "." ? name : `${directory.pattern}/${name}`,
    });
    const files = listing.files.map(below);
    const open = files.filter(judge);
    const directories = listing.directories.map((name) => ({ place: below(name), found: visit(below(name)) }));
    const isWhole =
      open.length === files.length &&
      directories.every(({ found }) => found.isOpen) &&
      judge(below("toolgate-any-file"));
    if (isWhole) return { isOpen: true, paths: [directory.absolute] };
    const paths = directories.flatMap(({ place, found }) => (found.isOpen ? [place.absolute] : found.paths));
    return { isOpen: false, paths: [...paths, ...open.map(({ absolute }) => absolute)] };
  };
  return visit(root);
}

/** Checks if a file may be read. */
function isReadable({ decisions, allowed }: PlanInput, place: ReadPlace): boolean {
  return allowed.read.has(place.absolute) || decisions.restriction("read", place) === undefined;
}

/** Returns the reason why a file may not be changed; undefined if it may. */
export function changeProblem({ decisions, allowed, editTrees }: PlanInput, place: ReadPlace): string | undefined {
  if (allowed.edit.has(place.absolute) || editTrees.some((tree) => isWithin(place.absolute, tree))) return undefined;
  const denied = decisions.restriction("edit", place);
  if (denied !== undefined) return denied;
  const inGit = pathInGitDirectory(place.absolute);
  const isGitData = inGit !== undefined && !isGitCode(inGit);
  // What surrounds a repository may be protected as a whole.
  const judged = isGitData ? `${place.absolute.slice(0, -inGit.length - "/.git/".length)}/${unnamed}` : place.absolute;
  const what = decisions.protection(judged);
  return what === undefined ? undefined : `${place.pattern} is ${what}`;
}

/** Returns the reason why nothing below a directory may be changed; undefined if something may, or if that is uncertain. */
export function directoryProblem({ decisions, editTrees }: PlanInput, place: ReadPlace): string | undefined {
  if (editTrees.some((tree) => isWithin(place.absolute, tree) || isWithin(tree, place.absolute))) return undefined;
  if (decisions.isClosed("edit", place)) return decisions.restriction("edit", childOf(place));
  const inGit = pathInGitDirectory(childOf(place).absolute);
  if (inGit !== undefined) return isGitCode(inGit) ? `${place.pattern} is a directory of hooks` : undefined;
  const what = decisions.protection(childOf(place).absolute);
  return what === undefined ? undefined : `${place.pattern} is ${what}`;
}

/** Checks if the call was allowed a path below a directory. */
export const holdsAllowed = ({ allowed }: PlanInput, access: FileUse, directory: string) =>
  [...allowed[access]].some((path) => path.startsWith(`${directory}/`));

/** Returns a path below a root with the form of it that rules match. */
export function rulePlaceOf(root: PlanRoot, absolute: string): ReadPlace {
  const below = absolute.slice(root.absolute.length + 1);
  return { absolute, pattern: root.pattern === "." ? below : `${root.pattern}/${below}` };
}

/** Returns a path below a directory that no rule names. */
function childOf({ absolute, pattern }: ReadPlace): ReadPlace {
  return { absolute: `${absolute}/${unnamed}`, pattern: `${pattern}/${unnamed}` };
}

/** A name that no rule names. */
const unnamed = "toolgate-any-file";

/** Directories of installed packages. */
export const packageDirectories = new Set(["node_modules", "site-packages"]);

/** Checks if a path contains bytes that are not UTF-8, which Node replaces. */
export const isUndecodable = (path: string): boolean => path.includes("\uFFFD");

/** Returns the bytes of a path whose last name may be undecodable; of several such names the first one. */
export function rawPathOf(path: string): Buffer {
  if (!isUndecodable(basename(path))) return Buffer.from(path);
  const name = readdirSync(dirname(path), { encoding: "buffer" }).find((each) => String(each) === basename(path));
  return name ? Buffer.concat([Buffer.from(`${dirname(path)}/`), name]) : Buffer.from(path);
}
