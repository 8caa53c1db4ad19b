import type { FileUse } from "../policy/file-decisions.ts";
import type { FileRules } from "../policy/file-rules.ts";
import type { Covered } from "./layers.ts";
import type { MountPlan } from "./mount-plan.ts";
import type { PlanRoot } from "./plan-input.ts";

/** Inputs of a plan, as data for the thread of `createMountPlanner`. */
export interface PlanRequest {
  rules: FileRules;
  roots: readonly PlanRoot[];
  /** Canonical paths that the call was allowed. */
  allowed: Record<FileUse, readonly string[]>;
  /** Canonical paths that it was allowed to edit with all that is below. */
  editTrees: readonly string[];
  /** Paths that the sandbox hides from every command. */
  hidden: readonly string[];
  /** Placeholders, which do not count as existing. */
  placeholders: readonly string[];
  maxMasks: number;
}

/** A path that the command may not make or change, and what is there. */
export interface RestrictedPath extends Covered {
  readonly identity: string;
}

/** A plan, and the identities of what it covers. */
export interface Planned extends MountPlan {
  /** Directories below which a command can make paths. */
  open: string[];
  /** Identities of what mounts cover, and of the roots. */
  identities: ReadonlyMap<string, string>;
}

/** A plan that was compared with the disk once more, while bubblewrap made its mounts. */
export interface VerifiedPlan {
  /** Paths that the plan should cover, and does not: they were moved while it was made. */
  missed: Covered[];
  /** The restricted paths that exist, in order to recognize later what is new; empty for a plan that is partial. */
  present: RestrictedPath[];
}

/** A request to plan, or to list what is restricted in the directories that were open when a plan was made. */
export type ThreadRequest =
  | { id: number; plan: PlanRequest; verifyId?: number; isMounted?: boolean }
  | { id: number; restricted: PlanRequest; open: readonly string[] };

/** An answer of the thread. */
export type PlanAnswer =
  | { plan: Planned }
  | { verified: VerifiedPlan }
  | { restricted: RestrictedPath[] }
  | { error: string };

/** The thread's answer. */
export type ThreadAnswer = { id: number } & PlanAnswer;
