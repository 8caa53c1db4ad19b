import { parentPort } from "node:worker_threads";
import { createFileDecisions, type FileUse } from "../policy/file-decisions.ts";
import type { FileRules } from "../policy/file-rules.ts";
import { createGitTracking } from "./git-tracking.ts";
import { type MountPlan, type PlanRoot, planMounts } from "./mount-plan.ts";
import { NameIndex } from "./name-index.ts";
import { resolveMasks } from "./other-names.ts";

/** A request to the thread of `createMountPlanner`. */
export interface PlanRequest {
  rules: FileRules;
  roots: readonly PlanRoot[];
  /** Canonical paths that the call was allowed. */
  allowed: Record<FileUse, readonly string[]>;
  /** Canonical paths that it was allowed to edit with all that is below. */
  editTrees: readonly string[];
  /** Paths that the sandbox hides from every command. */
  hidden: readonly string[];
  maxMasks: number;
}

/** The thread's answer. */
export type PlanAnswer = { id: number } & ({ plan: MountPlan } | { error: string });

// Thread of `createMountPlanner`: it owns the index of names, which the commands of all workspaces share.
const index = new NameIndex();
const hasTrackedFiles = createGitTracking();

/** Reading so many for the first time takes a few seconds. */
const maxDirectories = 50_000;

function answer({ rules, roots, allowed, editTrees, hidden, maxMasks }: PlanRequest): MountPlan {
  index.refresh();
  const plan = planMounts({
    ...{ roots, tree: index, hasTrackedFiles, maxMasks, maxDirectories },
    decisions: createFileDecisions(rules),
    allowed: { read: new Set(allowed.read), edit: new Set(allowed.edit) },
    hidden: new Set(hidden),
    editTrees,
  });
  const masked = resolveMasks(
    plan.masked,
    roots.map(({ absolute }) => absolute),
    index,
  );
  return { ...plan, masked };
}

parentPort?.on("message", ({ id, request }: { id: number; request: PlanRequest }) => {
  try {
    parentPort?.postMessage({ id, plan: answer(request) } satisfies PlanAnswer);
  } catch (error) {
    parentPort?.postMessage({ id, error: String(error) } satisfies PlanAnswer);
  }
});
parentPort?.postMessage("ready");
