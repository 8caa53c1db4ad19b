import { readlinkSync } from "node:fs";
import { parentPort } from "node:worker_threads";
import { createFileDecisions } from "../policy/file-decisions.ts";
import { identityOf } from "./check-mounts.ts";
import { reachableStats } from "./git-directories.ts";
import { createGitTracking } from "./git-tracking.ts";
import type { Covered } from "./layers.ts";
import { type MountPlan, planMounts } from "./mount-plan.ts";
import { NameIndex } from "./name-index.ts";
import { treeWithout } from "./name-tree.ts";
import { isPlainRepository } from "./new-repository.ts";
import { notCovered } from "./not-covered.ts";
import { resolveMasks } from "./other-names.ts";
import type { PlanInput } from "./plan-input.ts";
import type {
  PlanAnswer,
  Planned,
  PlanRequest,
  RestrictedPath,
  ThreadAnswer,
  ThreadRequest,
  VerifiedPlan,
} from "./plan-messages.ts";
import { restrictedPaths } from "./restricted-paths.ts";

// Thread of `createMountPlanner`: it owns the index of names, which the commands of all workspaces share.
const index = new NameIndex();
const hasTrackedFiles = createGitTracking();

/** Reading so many for the first time takes a few seconds. */
const maxDirectories = 50_000;

function inputOf({ rules, allowed, hidden, placeholders, ...request }: PlanRequest): PlanInput {
  return {
    ...request,
    ...{ hasTrackedFiles, maxDirectories },
    tree: treeWithout(index, placeholders),
    decisions: createFileDecisions(rules),
    allowed: { read: new Set(allowed.read), edit: new Set(allowed.edit) },
    hidden: new Set(hidden),
  };
}

/**
 * Plans again while files move between directories, since a walk can miss those. Once nothing moves the plan holds; otherwise it
 * has to cover everything that any of many walks found.
 */
function plan(request: PlanRequest): Planned {
  const found = new Set<string>();
  for (let round = 0; round < maxWalks; round += 1) {
    index.refresh(knownAbsent);
    const { planned, isWhole } = planOnce(request);
    for (const { path } of planned.absent) knownAbsent.add(path);
    if (knownAbsent.size > maxKnownAbsent) knownAbsent.clear();
    if (isWhole && !index.isMoving) return planned;
    const covered = new Set(coveredPaths(planned).flatMap((path) => planned.identities.get(path) ?? []));
    for (const identity of covered) found.add(identity);
    if (isWhole && round >= enoughWalks && found.isSubsetOf(covered)) return planned;
    if (round < restingWalks) rest(settleMs);
  }
  throw new Error("files move between directories all the time; run it again when no other program moves them");
}

const rest = (ms: number) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

/** Walks after each of which the thread waits until the time of a change is settled. */
const restingWalks = 3;
const settleMs = 25;
const enoughWalks = 24;
const maxWalks = 100;
/** Paths that were placeholders: these come and go. */
const knownAbsent = new Set<string>();
const maxKnownAbsent = 10_000;

const coveredPaths = ({ masked, emptied, readOnly }: MountPlan) =>
  [...masked, ...emptied, ...readOnly].map(({ path }) => path);

/** Plans the mounts; the plan is whole if nothing that it covers has gone meanwhile. */
function planOnce(request: PlanRequest): { planned: Planned; isWhole: boolean } {
  const input = inputOf(request);
  const mounts = planMounts(input);
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
 * all the time, many walks have to find nothing that is not covered.
 */
function missedBy(request: PlanRequest, planned: Planned): Covered[] {
  // Each file counts there, not only those with certain names.
  const isReversed = planned.closed.length + planned.sealed.length > 0;
  for (let round = 0; round < enoughWalks; round += 1) {
    const changedCount = index.recheck();
    const isMoving = index.isMoving || (isReversed && changedCount > 0);
    if (!isMoving && changedCount <= 1) return [];
    if (isMoving) {
      index.refresh(knownAbsent);
      const missed = notCovered(planOnce(request).planned, planned);
      if (missed.length > 0) return missed;
    }
    // For a random time, since the other program could keep step.
    rest(1 + Math.random());
  }
  return [];
}

function verified(request: PlanRequest, planned: Planned): VerifiedPlan {
  const missed = missedBy(request, planned);
  const present = planned.isPartial ? [] : withIdentities(restrictedPaths(inputOf(request), planned.open));
  return { missed, present };
}

/** Lists what is restricted now. Repositories that a command has made count only if git takes commands from them. */
function restricted(request: PlanRequest, open: readonly string[]): RestrictedPath[] {
  index.refresh();
  return withIdentities(restrictedPaths(inputOf(request), open).filter(({ path }) => !isPlainRepository(path)));
}

function withIdentities(paths: readonly Covered[]): RestrictedPath[] {
  return paths.flatMap((covered) => {
    const stats = reachableStats(covered.path);
    if (stats === undefined || stats === "unreachable") return [];
    const target = stats.isSymbolicLink() ? ` ${readlinkSync(covered.path)}` : "";
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
  const { id, verifyId, plan: wanted } = request;
  const made = answer(id, () => ({ plan: plan(wanted) }));
  if (verifyId === undefined) return;
  answer(verifyId, () => {
    if (made === undefined) throw new Error("there is no plan");
    return { verified: verified(wanted, made.plan) };
  });
});
parentPort?.postMessage("ready");
