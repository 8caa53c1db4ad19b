import { basename, dirname } from "node:path";
import type { FileDecisions, FileUse } from "../policy/file-decisions.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import { isGitCode, isObjectStore, pathInGitDirectory } from "./git-directory.ts";
import { isWithin } from "./is-within.ts";
import type { Covered } from "./layers.ts";
import { createNameFilter, nameHits } from "./name-filter.ts";
import type { NameFilter, NameTree } from "./name-tree.ts";
import { openPaths } from "./open-paths.ts";

/** A directory that a command can reach: its canonical path, and the form of its path that rules match. */
export interface PlanRoot extends ReadPlace {
  /** True if the profile lets the command write there. */
  readonly isWritable: boolean;
  /** A directory below that is another root. */
  readonly except?: string;
}

/** Inputs of a plan. */
export interface PlanInput {
  readonly roots: readonly PlanRoot[];
  readonly tree: NameTree;
  readonly decisions: FileDecisions;
  /** Canonical paths that this call was allowed, whatever rules say. */
  readonly allowed: Record<FileUse, ReadonlySet<string>>;
  /** Canonical paths that this call was allowed to edit with all that is below. */
  readonly editTrees: readonly string[];
  /** Paths that the sandbox hides from every command. */
  readonly hidden: ReadonlySet<string>;
  /** Checks if git tracks a file below a directory. True if that is not known. */
  hasTrackedFiles(directory: string): boolean;
  /** Maximum number of files that are masked, and of paths that are read-only. */
  readonly maxMasks: number;
  /** Maximum number of directories that are searched. */
  readonly maxDirectories: number;
}

/** Mounts by which the kernel enforces what rules say about files. All paths are canonical and exist. */
export interface MountPlan {
  /** Directories that are replaced by an empty one, since nothing below may be read. */
  emptied: Covered[];
  /** Files that are replaced by one that nobody can read. */
  masked: Covered[];
  /** Files and directories that cannot be changed. */
  readOnly: Covered[];
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
  /** True if there are more directories than are searched; what is in the others is not covered. */
  isPartial: boolean;
}

/** Plans the mounts of one command. Depends on its input alone. */
export function planMounts(input: PlanInput): MountPlan {
  const plan: MountPlan = {
    ...{ emptied: [], masked: [], readOnly: [], pins: [], closed: [], shown: [], sealed: [], writable: [] },
    excess: { read: 0, edit: 0 },
    isPartial: false,
  };
  const searched = { directories: 0 };
  for (const root of input.roots) planRoot(input, plan, root, searched);
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
      plan.shown.push(...open.paths);
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
  if (checks === 0) return;
  const walk = { input, plan, root, checks, searched, filter: createNameFilter(decisions, root) };
  walkDirectory(walk, root.absolute, 0, checks);
}

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
  const isGit = pathInGitDirectory(`${directory}/`) !== undefined;
  const all = inherited | (isGit ? nameHits.protected : 0);
  const selected = tree.select(directory, walk.filter);
  for (const name of listing.directories)
    visitDirectory(walk, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  const files = all === 0 ? selected.keys() : listing.files;
  for (const name of files) {
    const bits = (all | (selected.get(name) ?? 0)) & checks;
    if (bits !== 0 && (all !== 0 || listing.files.includes(name))) visitFile(walk, `${directory}/${name}`, bits);
  }
}

function visitDirectory(walk: Walk, path: string, hits: number, checks: number): void {
  const { input, plan } = walk;
  if (input.hidden.has(path) || path === walk.root.except || isObjectStore(path)) return;
  const place = placeOf(walk.root, path);
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
  const isInstalled = installed.has(basename(path));
  if (left !== 0) walkDirectory(walk, path, hits, isInstalled ? left & ~nameHits.protected : left);
}

function visitFile({ input, plan, root }: Walk, path: string, bits: number): void {
  if (input.hidden.has(path)) return;
  const place = placeOf(root, path);
  if (bits & nameHits.read && !isReadable(input, place)) {
    plan.masked.push({ path, reason: input.decisions.restriction("read", place) ?? "" });
    return;
  }
  const problem = bits & (nameHits.edit | nameHits.protected) ? changeProblem(input, place) : undefined;
  if (problem !== undefined) plan.readOnly.push({ path, reason: problem });
}

function isReadable({ decisions, allowed }: PlanInput, place: ReadPlace): boolean {
  return allowed.read.has(place.absolute) || decisions.restriction("read", place) === undefined;
}

/** Returns the reason why a file may not be changed; undefined if it may. */
function changeProblem({ decisions, allowed, editTrees }: PlanInput, place: ReadPlace): string | undefined {
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
function directoryProblem({ decisions, editTrees }: PlanInput, place: ReadPlace): string | undefined {
  if (editTrees.some((tree) => isWithin(place.absolute, tree) || isWithin(tree, place.absolute))) return undefined;
  if (decisions.isClosed("edit", place)) return decisions.restriction("edit", childOf(place));
  const inGit = pathInGitDirectory(childOf(place).absolute);
  if (inGit !== undefined) return isGitCode(inGit) ? `${place.pattern} is a directory of hooks` : undefined;
  const what = decisions.protection(childOf(place).absolute);
  return what === undefined ? undefined : `${place.pattern} is ${what}`;
}

const holdsAllowed = ({ allowed }: PlanInput, access: FileUse, directory: string) =>
  [...allowed[access]].some((path) => path.startsWith(`${directory}/`));

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
function pinsOf(input: PlanInput, { emptied, masked, readOnly }: MountPlan): string[] {
  const pins = new Set<string>();
  const covered = [
    ...emptied.map(({ path }) => ({ path, access: "read" as const, isDirectory: true })),
    ...masked.map(({ path }) => ({ path, access: "read" as const, isDirectory: false })),
    ...readOnly.map(({ path }) => ({ path, access: "edit" as const, isDirectory: false })),
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

/** Checks if rules restrict a name in each directory, so that its parents may be renamed. */
function isCoveredAnywhere(
  input: PlanInput,
  root: PlanRoot,
  name: string,
  access: FileUse,
  isDirectory: boolean,
): boolean {
  return ["", "other/place/"].every((above) => {
    const place = placeOf(root, `${root.absolute}/${above}${name}`);
    if (access === "read" && isDirectory) return input.decisions.isClosed("read", place);
    if (access === "read") return !isReadable(input, place);
    return changeProblem(input, place) !== undefined;
  });
}

function placeOf(root: PlanRoot, absolute: string): ReadPlace {
  const below = absolute.slice(root.absolute.length + 1);
  return { absolute, pattern: root.pattern === "." ? below : `${root.pattern}/${below}` };
}

/** Returns a path below a directory that no rule names. */
function childOf({ absolute, pattern }: ReadPlace): ReadPlace {
  return { absolute: `${absolute}/${unnamed}`, pattern: `${pattern}/${unnamed}` };
}

const unnamed = "toolgate-any-file";

/** Directories of installed packages. */
const installed = new Set(["node_modules", "site-packages"]);
