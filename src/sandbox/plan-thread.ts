import { type BigIntStats, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { serialize } from "node:v8";
import { parentPort } from "node:worker_threads";
import { isWithin } from "../core/paths.ts";
import { createFileDecisions } from "../policy/file-decisions.ts";
import { rulesThatName } from "../policy/file-rules.ts";
import {
  createGitIndexReader,
  gitDirectoriesOf,
  identityOf,
  isObjectStore,
  pathInGitDirectory,
  reachableStats,
} from "./git-directories.ts";
import { createKnownResults, type FileFacts } from "./known-results.ts";
import type { Covered } from "./layers.ts";
import {
  changeProblem,
  directoryProblem,
  holdsAllowed,
  isUndecodable,
  type MountPlan,
  packageDirectories,
  planMounts,
  rawPathOf,
  rulePlaceOf,
} from "./mount-plan.ts";
import { NameIndex } from "./name-index.ts";
import { createNameFilter, type NameFilter, type NameTree, nameHits } from "./name-tree.ts";
import type { PlanInput, PlanRoot } from "./plan-input.ts";
import type {
  PlanAnswer,
  Planned,
  PlanRequest,
  RestrictedPath,
  ThreadAnswer,
  ThreadRequest,
  VerifiedPlan,
} from "./plan-messages.ts";

// Thread of `createMountPlanner`: it owns the index of names, which the commands of all workspaces share.
const index = new NameIndex();
const hasTrackedFiles = createGitTracking();

/** Reading so many for the first time takes a few seconds. */
const maxDirectories = 50_000;

function inputOf(
  { rules, allowed, hidden, ...request }: Omit<PlanRequest, "placeholders">,
  facts: FileFacts,
): PlanInput {
  const decisions = createFileDecisions(rules);
  const hasCode = request.roots.some(({ isCode }) => isCode);
  return {
    ...{ ...request, ...facts, maxDirectories },
    ...{ decisions, codeDecisions: hasCode ? createFileDecisions(rulesThatName(rules)) : decisions },
    allowed: { read: new Set(allowed.read), edit: new Set(allowed.edit) },
    hidden: new Set(hidden),
  };
}

const knownPlans = createKnownResults<MountPlan>(index, hasTrackedFiles);
const knownRestricted = createKnownResults<readonly Covered[]>(index, hasTrackedFiles);

/** Plans the mounts by the names of the files as they are now. */
function mountsFor({ placeholders, ...request }: PlanRequest): MountPlan {
  return knownPlans(keyOfRequest(request), placeholders, (facts) => planMounts(inputOf(request, facts)));
}

/** Lists the restricted paths by the names of the files as they are now. */
function restrictedFor({ placeholders, ...request }: PlanRequest, open: readonly string[]): readonly Covered[] {
  return knownRestricted(keyOfRequest({ request, open }), placeholders, (facts) =>
    restrictedPaths(inputOf(request, facts), open),
  );
}

/** Describes data as a whole, as a thread is passed it. */
const keyOfRequest = (request: unknown) => serialize(request).toString("latin1");

/**
 * Plans again while files move between directories, since a walk can miss those. Once nothing moves the plan holds; otherwise it
 * has to cover everything that any of many walks found, of which none lost a directory: one that is renamed all the time is lost by
 * nearly every walk.
 */
function plan(request: PlanRequest): Planned {
  const found = new Set<string>();
  let wholeWalks = 0;
  for (let round = 0; round < maxWalks; round += 1) {
    index.refresh(knownAbsent);
    const { planned, isWhole } = planOnce(request);
    for (const { path } of planned.absent) knownAbsent.add(path);
    if (knownAbsent.size > maxKnownAbsent) knownAbsent.clear();
    if (isWhole && !index.isMoving) return planned;
    const covered = new Set(coveredPaths(planned).flatMap((path) => planned.identities.get(path) ?? []));
    for (const identity of covered) found.add(identity);
    if (!index.isTorn) wholeWalks += 1;
    if (isWhole && wholeWalks > enoughWalks && found.isSubsetOf(covered)) return planned;
    if (round < restingWalks) rest(settleMs);
  }
  throw movesAllTheTime();
}

const movesAllTheTime = () =>
  new Error("files move between directories all the time; run it again when no other program moves them");

const rest = (ms: number) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

/** Walks after each of which the thread waits until the time of a change is settled. */
const restingWalks = 3;
const settleMs = 25;
const enoughWalks = 24;
const maxWalks = 300;
/** Paths that were placeholders: these come and go. */
const knownAbsent = new Set<string>();
const maxKnownAbsent = 10_000;

const coveredPaths = ({ masked, emptied, readOnly }: MountPlan) =>
  [...masked, ...emptied, ...readOnly].map(({ path }) => path);

/** Plans the mounts; the plan is whole if nothing that it covers has gone meanwhile. */
function planOnce(request: PlanRequest): { planned: Planned; isWhole: boolean } {
  const mounts = mountsFor(request);
  const roots = request.roots.map(({ absolute }) => absolute);
  const masked = resolveMasks(mounts, roots, index);
  const sealed = new Set(mounts.sealed.map(({ path }) => path));
  const open = [
    ...request.roots.flatMap(({ absolute }) => (sealed.has(absolute) ? [] : [absolute])),
    ...mounts.writable,
  ];
  const bound = [...mounts.pins, ...mounts.shown, ...mounts.writable, ...sealed, ...roots];
  const identities = identitiesOf([...coveredPaths(mounts), ...coveredPaths({ ...mounts, masked }), ...bound]);
  return {
    isWhole: masked.length >= mounts.masked.length && coveredPaths(mounts).every((path) => identities.has(path)),
    planned: { ...mounts, masked, open, identities },
  };
}

/**
 * Looks again at all names of the last plan until they were at one moment as they are listed, and returns what the plan does not cover:
 * a file that moved from a directory that was still to be listed into one that was listed is in neither list. While names change
 * all the time, many walks that lost no directory have to find nothing that is not covered.
 */
function missedBy(request: PlanRequest, planned: Planned): Covered[] {
  // Each file counts there, not only those with certain names.
  const isReversed = planned.closed.length + planned.sealed.length > 0;
  let wholeWalks = 0;
  for (let round = 0; round < maxWalks; round += 1) {
    const changedCount = index.recheck();
    const isMoving = index.isMoving || (isReversed && changedCount > 0);
    if (!isMoving && changedCount <= 1) return [];
    if (isMoving) {
      index.refresh(knownAbsent);
      const missed = notCovered(planOnce(request).planned, planned);
      if (missed.length > 0) return missed;
    }
    if (!isMoving || !index.isTorn) wholeWalks += 1;
    if (wholeWalks >= enoughWalks) return [];
    // For a random time, since the other program could keep step.
    rest(1 + Math.random());
  }
  throw movesAllTheTime();
}

function verified(request: PlanRequest, planned: Planned, isMounted: boolean): VerifiedPlan {
  // While mounts are made, files move on.
  const missed = isMounted && index.isStill ? [] : missedBy(request, planned);
  const present = planned.isPartial ? [] : withIdentities(restrictedFor(request, planned.open));
  return { missed, present };
}

/** Lists what is restricted now. Repositories that a command has made count only if git takes commands from them. */
function restricted(request: PlanRequest, open: readonly string[]): RestrictedPath[] {
  index.refresh();
  return withIdentities(restrictedFor(request, open).filter(({ path }) => !isPlainRepository(path)));
}

function withIdentities(paths: readonly Covered[]): RestrictedPath[] {
  return paths.flatMap((covered) => {
    const stats = reachableStats(rawPathOf(covered.path));
    if (stats === undefined || stats === "unreachable") return [];
    const target = stats.isSymbolicLink() ? ` ${readlinkSync(rawPathOf(covered.path))}` : "";
    return [{ ...covered, identity: `${stats.dev}:${stats.ino}${target}` }];
  });
}

function identitiesOf(paths: readonly string[]): Map<string, string> {
  return new Map(
    paths.flatMap((path) => {
      const identity = identityOf(path);
      return identity === undefined ? [] : [[path, identity] as const];
    }),
  );
}

/** Posts an answer, or the reason why there is none; returns the answer. */
function answer<A extends PlanAnswer>(id: number, compute: () => A): A | undefined {
  try {
    const computed = compute();
    parentPort?.postMessage({ id, ...computed } satisfies ThreadAnswer);
    return computed;
  } catch (error) {
    parentPort?.postMessage({ id, error: String(error) } satisfies ThreadAnswer);
    return undefined;
  }
}

parentPort?.on("message", (request: ThreadRequest) => {
  if ("restricted" in request) {
    answer(request.id, () => ({ restricted: restricted(request.restricted, request.open) }));
    return;
  }
  const { id, verifyId, plan: wanted, isMounted = false } = request;
  const made = answer(id, () => ({ plan: plan(wanted) }));
  if (verifyId === undefined) return;
  answer(verifyId, () => {
    if (made === undefined) throw new Error("there is no plan");
    return { verified: verified(wanted, made.plan, isMounted) };
  });
});
parentPort?.postMessage("ready");

/** Creates the check if git tracks a file below a directory. */
export function createGitTracking(): (directory: string) => boolean {
  const pathsOf = createGitIndexReader();
  return (directory) => {
    for (let top = directory; ; top = dirname(top)) {
      const git = gitDirectoriesOf(top);
      if (git !== undefined) {
        const paths = pathsOf(join(git.own, "index"));
        const below = `${relative(top, directory)}/`;
        return paths === undefined || below === "/" || [...paths].some((path) => path.startsWith(below));
      }
      if (top === "/") return false;
    }
  };
}

/** Maximum size of a file of settings that is read. */
const maxBytes = 65_536;

/**
 * Checks if a path of a new repository gives git no command to run, as `git init`, `git clone` and `git worktree add` make them:
 * a directory of sample hooks, settings that only name branches and remote repositories, and the file of a work tree that leads
 * to such a repository.
 */
function isPlainRepository(path: string): boolean {
  const [, inside] = /\/\.git(?:\/(.*))?$/s.exec(path) ?? [];
  if (inside === undefined) return basename(path) === ".git" && isWorkTreeFile(path);
  if (inside === "hooks") return hasSampleHooksOnly(path);
  if (/^worktrees\/[^/]+\/commondir$/.test(inside)) return textOf(path) === ownCommonDirectory;
  return /^(config|config\.worktree|worktrees\/[^/]+\/config\.worktree)$/.test(inside) && isPlainConfig(textOf(path));
}

function hasSampleHooksOnly(directory: string): boolean {
  try {
    return readdirSync(directory, { withFileTypes: true }).every(
      (entry) => entry.isFile() && entry.name.endsWith(".sample"),
    );
  } catch {
    return false;
  }
}

/** Content of `commondir` of a work tree: the repository in whose directory it is. */
const ownCommonDirectory = "../..\n";

/** Checks the file `.git` of a work tree: it names a directory below a repository, which is judged by itself. */
function isWorkTreeFile(path: string): boolean {
  const [, directory] = /^gitdir: (\/[^\n]*\/\.git\/worktrees\/[^/\n]+)\n?$/.exec(textOf(path) ?? "") ?? [];
  return directory !== undefined && textOf(`${directory}/commondir`) === ownCommonDirectory;
}

function textOf(path: string): string | undefined {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  return stats?.isFile() && stats.size <= maxBytes ? readFileSync(path, "utf8") : undefined;
}

/** Checks if settings hold nothing but what describes a repository. No value can be continued, quoted or escaped. */
function isPlainConfig(text: string | undefined): boolean {
  if (text === undefined) return false;
  let section = "";
  return text.split("\n").every((line) => {
    if (/^\s*$/.test(line)) return true;
    const [, header] = /^\[(core|(?:remote|branch) "[^"\\]+")\]$/.exec(line) ?? [];
    if (header !== undefined) section = header.split(" ", 1)[0] ?? "";
    if (header !== undefined) return true;
    const [, name = "", value = ""] = /^\t(\w+) = ([\w./:@+*~ -]+)$/.exec(line) ?? [];
    return plainSettings.get(section)?.has(name) === true && !value.includes("::");
  });
}

/** Settings that git only reads as data. */
const plainSettings: ReadonlyMap<string, ReadonlySet<string>> = new Map([
  [
    "core",
    new Set(["repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode"]),
  ],
  ["remote", new Set(["url", "fetch"])],
  ["branch", new Set(["remote", "merge"])],
]);

/**
 * Returns what a plan covers and an earlier one for the same request does not. A mount stays with its file wherever that is moved, so
 * files are compared by their identities.
 */
export function notCovered(now: Planned, before: Planned): Covered[] {
  const idOf = ({ path }: Covered) => now.identities.get(path);
  const idsOf = (covered: readonly Covered[]) => new Set(covered.map(({ path }) => before.identities.get(path)));
  const isNew = (covered: readonly Covered[], ids: ReadonlySet<string | undefined>, above: readonly Covered[]) =>
    covered.filter((one) => {
      const id = idOf(one);
      return id !== undefined && !ids.has(id) && !above.some(({ path }) => isWithin(one.path, path));
    });
  const hiding = [...before.closed, ...before.emptied];
  const hidden = [...before.emptied, ...before.masked];
  const sealing = [...hiding, ...before.sealed, ...before.readOnly, ...before.absent];
  // Of too many nothing can be covered, which was asked about.
  const isReadWhole = before.excess.read === 0 && !before.isPartial;
  return [
    ...(isReadWhole ? isNew([...now.emptied, ...now.masked], idsOf(hidden), hiding) : []),
    ...(before.excess.edit === 0 ? isNew(now.readOnly, idsOf([...hidden, ...before.readOnly]), sealing) : []),
    ...outside(before.shown, now.shown),
    ...outside(before.writable, now.writable),
  ];
}

/** Lists the paths that are not below any of the others: they were open as a whole, and hold something by now that is not. */
const outside = (paths: readonly string[], others: readonly string[]): Covered[] =>
  paths
    .filter((path) => !others.some((other) => isWithin(path, other)))
    .map((path) => ({ path, reason: "not all that it holds is allowed" }));

/**
 * Looks at the files to mask once more: drops those that are gone, and adds the other names (hard links) below the roots of the rest
 * and of the files in emptied directories, by which a command could read them.
 */
export function resolveMasks(
  { masked, emptied }: Pick<MountPlan, "masked" | "emptied">,
  roots: readonly string[],
  tree: NameTree,
): Covered[] {
  const found = new Map<string, Covered>();
  const linked = new Map<string, Covered>();
  const addIfLinked = (file: Covered, stats: BigIntStats | undefined) => {
    if (stats && stats.nlink > 1n) linked.set(keyOf(stats), file);
  };
  for (const file of masked) {
    const stats = statsOf(file.path);
    if (stats === undefined || stats.isDirectory() || stats.isSymbolicLink()) continue;
    found.set(file.path, file);
    addIfLinked(file, stats);
  }
  for (const { path: directory, reason } of emptied)
    for (const path of filesBelow(directory, none, tree)) addIfLinked({ path, reason }, statsOf(path));
  if (linked.size === 0) return [...found.values()];
  const unseen = new Set(emptied.map(({ path }) => path));
  for (const root of roots)
    for (const path of filesBelow(root, unseen, tree)) {
      const stats = found.has(path) ? undefined : statsOf(path);
      const other = stats && stats.nlink > 1n ? linked.get(keyOf(stats)) : undefined;
      if (other) found.set(path, { path, reason: `it is the same file as ${other.path}: ${other.reason}` });
    }
  return [...found.values()];
}

/** Lists the files below a directory, but not those in `unseen` directories and in object stores. */
function* filesBelow(directory: string, unseen: ReadonlySet<string>, tree: NameTree): Generator<string> {
  if (unseen.has(directory) || isObjectStore(directory)) return;
  const listing = tree.list(directory);
  if (listing === undefined) return;
  for (const name of listing.files) yield `${directory}/${name}`;
  for (const name of listing.directories) yield* filesBelow(`${directory}/${name}`, unseen, tree);
}

const none: ReadonlySet<string> = new Set();

function statsOf(path: string): BigIntStats | undefined {
  return lstatSync(path, { bigint: true, throwIfNoEntry: false });
}

const keyOf = ({ dev, ino }: BigIntStats) => `${dev}:${ino}`;

/** The walk below one directory. */
interface Search {
  readonly input: PlanInput;
  readonly root: PlanRoot;
  readonly filter: NameFilter;
  readonly found: Covered[];
}

/**
 * Lists the paths below directories that a command may not make or change, also links, which no mount can cover. A directory
 * below which nothing may be changed stands for all that is in it.
 */
export function restrictedPaths(input: PlanInput, directories: readonly string[]): Covered[] {
  const found: Covered[] = [];
  for (const directory of directories) {
    const root = input.roots.find(({ absolute }) => isWithin(directory, absolute));
    if (!root?.isWritable) continue;
    searchDirectory({ input, root, filter: createNameFilter(input.decisions, root), found }, directory, 0, checked);
  }
  return found;
}

const checked = nameHits.edit | nameHits.protected;

/** Searches a directory. `inherited` are bits of the names above it, `checks` those that are still to check. */
function searchDirectory(search: Search, directory: string, inherited: number, checks: number): void {
  const { input, filter } = search;
  const listing = input.tree.list(directory);
  if (listing === undefined) return;
  const isGit = pathInGitDirectory(`${directory}/`) !== undefined;
  const all = inherited | (isGit ? nameHits.protected : 0);
  const selected = input.tree.select(directory, filter);
  for (const name of listing.directories)
    searchBelow(search, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  for (const name of listing.files) addPath(search, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  for (const name of listing.links) addPath(search, `${directory}/${name}`, all | filter.test(name), checks);
}

function searchBelow(search: Search, path: string, hits: number, checks: number): void {
  const { input, root, found } = search;
  if (input.hidden.has(path) || path === root.except || isObjectStore(path)) return;
  if (isUndecodable(path)) {
    found.push({ path, reason: "its name is not UTF-8, so that what is in it cannot be judged" });
    return;
  }
  const problem = hits & checks ? directoryProblem(input, rulePlaceOf(root, path)) : undefined;
  if (problem !== undefined && !holdsAllowed(input, "edit", path)) {
    found.push({ path, reason: problem });
    return;
  }
  const isInstalled = packageDirectories.has(basename(path));
  searchDirectory(search, path, hits, isInstalled ? checks & ~nameHits.protected : checks);
}

function addPath({ input, root, found }: Search, path: string, hits: number, checks: number): void {
  if ((hits & checks) === 0 || input.hidden.has(path)) return;
  const problem = changeProblem(input, rulePlaceOf(root, path));
  if (problem !== undefined) found.push({ path, reason: problem });
}
