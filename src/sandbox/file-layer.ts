import { isWithin } from "../core/paths.ts";
import type { SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { type ExpectedMounts, identityOf, uncoveredPath } from "./git-directories.ts";
import type { Covered, LayerShare } from "./layers.ts";
import type { MountPlan } from "./mount-plan.ts";
import type { MountPoints } from "./mount-points.ts";
import {
  coverable,
  type FileRequest,
  fileRequest,
  type MountPlanner,
  planFiles,
  planFilesOfStart,
} from "./plan-files.ts";
import type { PlanRoot } from "./plan-input.ts";
import type { Planned } from "./plan-messages.ts";
import type { RunningCommands } from "./running-commands.ts";

/** Dependencies and limit of the file layer. */
export interface FileLayerParts {
  readonly planner: MountPlanner;
  readonly mountPoints: MountPoints;
  readonly running: RunningCommands;
  /** The file that is mounted over masked ones. */
  readonly maskFile: string;
  /** Paths that the base layer hides. */
  readonly hidden: readonly string[];
  /** Maximum number of masks. */
  readonly maxMasks: number;
}

/** Makes the mounts by which rules about files hold for a command. */
export async function fileLayer(
  confinement: SandboxConfinement,
  place: SandboxPlace,
  parts: FileLayerParts,
): Promise<LayerShare> {
  const { mountPoints, running, maskFile } = parts;
  const sinceMs = Date.now();
  const { files, cwd, isMounted } = place;
  const request = fileRequest(confinement, place, parts);
  if (files === undefined || request === undefined) return {};
  const start = await planFilesOfStart(parts, request, isMounted);
  const plan = coverable(start.planned, files, parts.maxMasks);
  const canWrite = confinement.profile !== "read-only";
  const pathsOf = (covered: readonly Covered[]) => covered.map(({ path }) => path);
  const absent = pathsOf(plan.absent);
  const held = mountPoints.hold({ absent, mounted: pathsOf([...plan.masked, ...plan.emptied]), sinceMs });
  const command = running.enter(files, [
    ...pathsOf([...plan.masked, ...plan.readOnly]),
    ...plan.shown,
    ...plan.writable,
  ]);
  const args = mountArgs(plan, { cwd, maskFile, roots: request.roots });
  return {
    layers: ["files"],
    args,
    async check(pid) {
      const { missed } = await start.verified;
      const path = missed[0]?.path ?? uncoveredPath(pid, expectedMounts(plan, args, maskFile, request.roots));
      if (path === undefined) return undefined;
      return `nothing was run, since ${path} was moved while its mounts were made. Run it again.`;
    },
    covered: {
      hidden: hiddenBy(plan),
      readOnly: [...plan.sealed, ...plan.readOnly],
      absent: plan.absent,
    },
    async created() {
      if (!canWrite || plan.isPartial) return [];
      const allowed = { read: files.read, edit: [...command.edit] };
      const now = { ...request, allowed, editTrees: [...command.editTrees] };
      const { present } = await start.verified;
      return await createdPaths(parts, now, { ...plan, present });
    },
    uncovered: (rules) => uncoveredPaths(parts, { ...request, rules }, plan),
    rest: held.rest,
    async release() {
      command.leave();
      held.free();
    },
  };
}

function expectedMounts(
  { identities, masked, emptied, closed }: Planned,
  args: ExpectedMounts["args"],
  maskFile: string,
  roots: readonly PlanRoot[],
): ExpectedMounts {
  const isClosed = (root: string) => closed.some(({ path }) => path === root);
  return {
    ...{ identities, args, maskIdentity: identityOf(maskFile) },
    masked: masked.map(({ path }) => path),
    emptied: emptied.map(({ path }) => path),
    roots: roots.map(({ absolute }) => absolute).filter((root) => !isClosed(root)),
  };
}

/** Returns the paths that a plan hides. */
function hiddenBy({ closed, emptied, masked }: MountPlan): Covered[] {
  return [...[...closed, ...emptied].map((one) => ({ ...one, isDirectory: true })), ...masked];
}

/** Returns the paths that a command would not see. Throws `TooManyMounts`. */
export async function hiddenPathsOf(
  confinement: SandboxConfinement,
  place: SandboxPlace,
  parts: FileLayerParts,
): Promise<Covered[]> {
  const { files } = place;
  const request = fileRequest(confinement, place, parts);
  if (files === undefined || request === undefined) return [];
  return hiddenBy(coverable(await planFiles(parts, request), files, parts.maxMasks));
}

/** Lists what a command made although it may not; placeholders are none of it. */
async function createdPaths(
  { planner, mountPoints }: FileLayerParts,
  request: FileRequest,
  planned: Parameters<MountPlanner["created"]>[1],
): Promise<Covered[]> {
  const watch = mountPoints.watch();
  try {
    const created = await planner.created({ ...request, placeholders: [...watch.paths] }, planned);
    return created.filter(({ path }) => !watch.paths.has(path));
  } finally {
    watch.stop();
  }
}

/** Lists what is restricted now and was not when a plan was made, and hidden files that were replaced: the mount went with the old one. */
async function uncoveredPaths(parts: FileLayerParts, request: FileRequest, before: Planned): Promise<Covered[]> {
  const now = await planFiles(parts, request);
  const isBelow = (places: readonly Covered[]) => (one: Covered) => places.some(({ path }) => isWithin(one.path, path));
  const isHidden = isBelow([...before.closed, ...before.emptied, ...before.masked]);
  const isReadOnly = isBelow([...before.sealed, ...before.readOnly, ...before.absent]);
  const isInHidden = isBelow([...before.closed, ...before.emptied]);
  const isReplaced = (one: Covered) =>
    !isInHidden(one) && before.identities.get(one.path) !== now.identities.get(one.path);
  return [
    ...[...now.closed, ...now.emptied].filter((one) => !isHidden(one)),
    ...now.masked.filter((one) => !isHidden(one) || isReplaced(one)),
    ...[...now.sealed, ...now.readOnly].filter((one) => !isHidden(one) && !isReadOnly(one)),
  ];
}

/** Turns a plan for these roots into mounts. `maskFile` is mounted over masked files, `cwd` exists also where a root is closed. */
function mountArgs(
  { closed, shown, sealed, writable, pins, readOnly, absent, emptied, masked }: MountPlan,
  { cwd, maskFile, roots: planned }: { cwd: string; maskFile: string; roots: readonly PlanRoot[] },
): NonNullable<LayerShare["args"]> {
  const bound = (paths: readonly string[], option: string) => paths.flatMap((path) => [option, path, path]);
  const isSealed = (path: string) => !isInWritable(planned, path) || sealed.some((root) => isWithin(path, root.path));
  // One may lie in another.
  const outerFirst = closed.toSorted((one, other) => one.path.length - other.path.length);
  const roots = outerFirst.flatMap(({ path }) => ["--tmpfs", path, ...directoriesOf(cwd, path)]);
  return {
    directories: [
      ...roots,
      ...shown.flatMap((path) => [isSealed(path) ? "--ro-bind" : "--bind", path, path]),
      ...bound(
        sealed.map(({ path }) => path).filter((path) => !closed.some((root) => root.path === path)),
        "--ro-bind",
      ),
      ...bound(writable, "--bind"),
    ],
    // A pin makes its directory writable, which it is only outside of sealed roots.
    // Any of them may have been removed since the plan was made.
    pins: bound(
      pins.filter((path) => !isSealed(path) || writable.some((open) => isWithin(path, open))),
      "--bind-try",
    ),
    readOnly: bound(
      [...readOnly, ...absent].map(({ path }) => path),
      "--ro-bind-try",
    ),
    masks: [
      ...emptied.flatMap(({ path }) => ["--perms", "0555", "--tmpfs", path]),
      ...masked.flatMap(({ path }) => ["--ro-bind", maskFile, path]),
    ],
    // Late, since other layers mount over paths in them, which bubblewrap has to make.
    root: [...closed, ...emptied].flatMap(({ path }) => ["--remount-ro", path]),
  };
}

/** Checks if the innermost of the roots that hold a path is writable. */
function isInWritable(roots: readonly PlanRoot[], path: string): boolean {
  const holding = roots.filter(({ absolute }) => isWithin(path, absolute));
  return holding.reduce((one, other) => (other.absolute.length > one.absolute.length ? other : one)).isWritable;
}

/** Makes a working directory below a closed root, which would not exist otherwise. */
const directoriesOf = (cwd: string, root: string) => (cwd.startsWith(`${root}/`) ? ["--dir", cwd] : []);
