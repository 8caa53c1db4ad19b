import { isKernelDirectory } from "./base-layer.ts";
import type { SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { isWithin } from "./is-within.ts";
import type { LayerShare } from "./layers.ts";
import { removeMountPoints } from "./mask-file.ts";
import { mountArgs } from "./mount-layer.ts";
import type { MountPlanner } from "./mount-planner.ts";
import type { PlanRequest } from "./plan-thread.ts";
import { sharedTemporary } from "./session-directories.ts";

/** Dependencies and limit of the file layer. */
export interface FileLayerParts {
  readonly planner: MountPlanner;
  /** The file that is mounted over masked ones. */
  readonly maskFile: string;
  /** Paths that the base layer hides. */
  readonly hidden: readonly string[];
  /** Maximum number of masks. */
  readonly maxMasks: number;
}

/** Thrown if a command would need more mounts than bubblewrap can make in reasonable time. */
export class TooManyMounts extends Error {
  readonly use: "read" | "edit";
  /** Undefined if there are too many directories to count the files. */
  readonly count: number | undefined;
  readonly maxMasks: number;
  constructor(use: "read" | "edit", count: number | undefined, maxMasks: number) {
    super(
      `${count ?? "an unknown number of"} files may not be ${use === "read" ? "read" : "changed"}, and the sandbox can cover ${maxMasks}`,
    );
    this.use = use;
    this.count = count;
    this.maxMasks = maxMasks;
  }
}

/** Makes the mounts by which rules about files hold for a command. */
export async function fileLayer(
  { profile }: SandboxConfinement,
  place: SandboxPlace,
  { planner, maskFile, hidden, maxMasks }: FileLayerParts,
): Promise<LayerShare> {
  const { files, workspace, directories, cwd } = place;
  if (files === undefined) return {};
  const isWritable = profile !== "read-only";
  const outside = directories.filter(
    (path) => !isKernelDirectory(path) && !sharedTemporary.has(path) && !isWithin(path, workspace),
  );
  const request: PlanRequest = {
    rules: files.rules,
    roots: [
      { absolute: workspace, pattern: ".", isWritable },
      ...outside.map((path) => ({ absolute: path, pattern: path, isWritable, except: workspace })),
    ],
    allowed: { read: files.read, edit: files.edit },
    editTrees: files.editTrees ?? [],
    hidden,
    maxMasks,
  };
  const startedMs = Date.now();
  const planned = await planner.plan(request);
  const { excess } = planned;
  if (planned.isPartial && !files.mayRead) throw new TooManyMounts("read", undefined, maxMasks);
  if (excess.read > 0 && !files.mayRead) throw new TooManyMounts("read", excess.read, maxMasks);
  if (excess.edit > 0 && !files.mayEdit) throw new TooManyMounts("edit", excess.edit, maxMasks);
  const plan = excess.read > 0 ? { ...planned, masked: [] } : planned;
  return {
    args: mountArgs(plan, { cwd, maskFile, isWritable }),
    covered: {
      hidden: [...plan.closed, ...plan.emptied, ...plan.masked],
      readOnly: [...plan.sealed, ...plan.readOnly],
    },
    release: async () => removeMountPoints(plan.masked, startedMs),
  };
}
