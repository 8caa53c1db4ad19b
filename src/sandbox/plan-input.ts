import type { FileDecisions, FileUse } from "../policy/file-decisions.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import type { NameTree } from "./name-tree.ts";

/** A directory that a command can reach: its canonical path, and the form of its path that rules match. */
export interface PlanRoot extends ReadPlace {
  /** True if the profile lets the command write there. */
  readonly isWritable: boolean;
  /** True if it holds the code of the program itself. */
  readonly isCode?: boolean;
  /** A directory below that is another root. */
  readonly except?: string;
}

/** Inputs of a plan. */
export interface PlanInput {
  readonly roots: readonly PlanRoot[];
  readonly tree: NameTree;
  readonly decisions: FileDecisions;
  /** Decisions on the roots with code. */
  readonly codeDecisions: FileDecisions;
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
