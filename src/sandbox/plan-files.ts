import { isKernelDirectory } from "./base-layer.ts";
import type { PlaceFiles, SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { isWithin } from "./is-within.ts";
import type { Covered } from "./layers.ts";
import type { MountPlanner, StartPlan } from "./mount-planner.ts";
import type { MountPoints } from "./mount-points.ts";
import type { Planned, PlanRequest } from "./plan-messages.ts";
import { sharedTemporary } from "./session-directories.ts";

/** The planner, and the placeholders that it leaves out. */
export interface FilePlanParts {
  readonly planner: MountPlanner;
  readonly mountPoints: Pick<MountPoints, "watch">;
}

/** The facts from which the plan of a command follows, but for placeholders. */
export type FileRequest = Omit<PlanRequest, "placeholders">;

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

/** Returns the request for the plan of a command; undefined if no rules hold for it. */
export function fileRequest(
  { profile }: SandboxConfinement,
  { files, workspace, directories }: SandboxPlace,
  { hidden, maxMasks }: Pick<FileRequest, "hidden" | "maxMasks">,
): FileRequest | undefined {
  if (files === undefined) return undefined;
  const canWrite = profile !== "read-only";
  // Names of the whole disk are too many.
  const outside = directories.filter(
    ({ path }) => path !== "/" && !isKernelDirectory(path) && !sharedTemporary.has(path) && !isWithin(path, workspace),
  );
  return {
    rules: files.rules,
    roots: [
      { absolute: workspace, pattern: ".", isWritable: canWrite },
      ...outside.map(({ path, isWritable }) => ({
        ...{ absolute: path, pattern: path, except: workspace },
        isWritable: canWrite && isWritable,
      })),
    ],
    allowed: { read: files.read, edit: files.edit },
    editTrees: files.editTrees ?? [],
    hidden,
    maxMasks,
  };
}

/** Returns the plan without masks if an approver allowed to read all files. Throws `TooManyMounts` if it cannot cover them otherwise. */
export function coverable(planned: Planned, { mayRead, mayEdit }: PlaceFiles, maxMasks: number): Planned {
  const { excess } = planned;
  if (planned.isPartial && !mayRead) throw new TooManyMounts("read", undefined, maxMasks);
  if (excess.read > 0 && !mayRead) throw new TooManyMounts("read", excess.read, maxMasks);
  if (excess.edit > 0 && !mayEdit) throw new TooManyMounts("edit", excess.edit, maxMasks);
  return excess.read > 0 ? { ...planned, masked: [] } : planned;
}

/** Plans the mounts. Placeholders of other commands count as absent, so that they stay as long as this command needs them. */
export async function planFiles({ planner, mountPoints }: FilePlanParts, request: FileRequest): Promise<Planned> {
  const watch = mountPoints.watch();
  try {
    return withAbsent(await planner.plan({ ...request, placeholders: [...watch.paths] }), watch.paths);
  } finally {
    watch.stop();
  }
}

/** Plans the mounts of a command that starts now. What is a placeholder before they are verified counts as absent, too. */
export async function planFilesOfStart(
  { planner, mountPoints }: FilePlanParts,
  request: FileRequest,
): Promise<StartPlan> {
  const watch = mountPoints.watch();
  const isReal = ({ path }: Covered) => !watch.paths.has(path);
  const start = await planner.planStart({ ...request, placeholders: [...watch.paths] }).catch((error: unknown) => {
    watch.stop();
    throw error;
  });
  const verified = start.verified
    .then(({ missed, present }) => ({ missed: missed.filter(isReal), present: present.filter(isReal) }))
    .finally(watch.stop);
  // A command that is never checked does not wait for it.
  verified.catch(() => {});
  return { planned: withAbsent(start.planned, watch.paths), verified };
}

function withAbsent(planned: Planned, placeholders: ReadonlySet<string>): Planned {
  const isPlaceholder = ({ path }: Covered) => placeholders.has(path);
  const made = planned.readOnly.filter(isPlaceholder);
  const readOnly = planned.readOnly.filter((one) => !isPlaceholder(one));
  return { ...planned, readOnly, absent: [...planned.absent, ...made] };
}
