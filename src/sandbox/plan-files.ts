import { once } from "node:events";
import { relative } from "node:path";
import { Worker } from "node:worker_threads";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { assets } from "../core/assets.ts";
import { isWithin } from "../core/paths.ts";
import type { FileRules } from "../policy/file-rules.ts";
import { expandHome, type Rule } from "../policy/rules.ts";
import { matcher, toSlashes } from "../policy/wildcard.ts";
import { isKernelDirectory } from "./base-layer.ts";
import type { PlaceFiles, SandboxConfinement, SandboxPlace } from "./confinement.ts";
import type { Covered } from "./layers.ts";
import type { MountPoints } from "./mount-points.ts";
import type {
  Planned,
  PlanRequest,
  RestrictedPath,
  ThreadAnswer,
  ThreadRequest,
  VerifiedPlan,
} from "./plan-messages.ts";
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
    ({ path, isCode }) =>
      path !== "/" &&
      !isKernelDirectory(path) &&
      !sharedTemporary.has(path) &&
      (!isWithin(path, workspace) || (isCode && path !== workspace)),
  );
  return {
    rules: files.rules,
    roots: [
      { absolute: workspace, pattern: ".", isWritable: canWrite },
      ...outside.map(({ path, isWritable, isCode = false }) => ({
        ...{ absolute: path, pattern: isWithin(path, workspace) ? relative(workspace, path) : path, except: workspace },
        isWritable: canWrite && isWritable,
        // One that holds the workspace would open it.
        isCode: isCode && !isWithin(workspace, path),
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
  isMounted = false,
): Promise<StartPlan> {
  const watch = mountPoints.watch();
  const isReal = ({ path }: Covered) => !watch.paths.has(path);
  const start = await planner
    .planStart({ ...request, placeholders: [...watch.paths] }, isMounted)
    .catch((error: unknown) => {
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

/** Directories outside the workspace that rules name. */
interface NamedDirectories {
  /** Directories below which rules may allow everything: whether they do is for the caller to judge. */
  readonly candidates: readonly string[];
  /** Directories that rules close, or open only after an ask. */
  readonly closed: readonly string[];
}

/**
 * Finds the directories that rules for `external_directory` name as `DIRECTORY/*`. One below which another rule may match a part
 * that has no name is no candidate, since that part could not be hidden.
 */
export function namedDirectories({ wide, narrow, home }: FileRules): NamedDirectories {
  const rules = [...wide, ...narrow].flatMap(({ rules }) => rules).filter(isAboutDirectories);
  const named = rules.map(({ pattern, action }) => {
    const path = expandHome(toSlashes(pattern), home);
    return { path, action, directory: path === "*" ? "/" : literalDirectory(path) };
  });
  const restricting = named.filter(({ action }) => action !== PermissionAction.ALLOW);
  const unnamed = restricting.filter(({ directory }) => directory === undefined).map(({ path }) => path);
  const opened = named.filter(({ action }) => action === PermissionAction.ALLOW).map(({ directory }) => directory);
  return {
    candidates: [...new Set(opened)].filter(
      (directory) => directory !== undefined && !unnamed.some((pattern) => mayMatchBelow(pattern, directory)),
    ) as string[],
    closed: restricting.flatMap(({ directory = "/" }) => (directory === "/" ? [] : [directory])),
  };
}

const isAboutDirectories = ({ permission }: Rule) =>
  permission === "external_directory" || (permission.includes("*") && matcher(permission)("external_directory"));

/** Returns the directory of a pattern `DIRECTORY/*`; undefined if it has other wildcards or is no absolute path. */
const literalDirectory = (pattern: string) => /^(\/|\/[^*?]*[^*?/])\/?\*$/.exec(pattern)?.[1];

/** Checks if a pattern may match something below a directory: their literal beginnings agree. */
function mayMatchBelow(pattern: string, directory: string): boolean {
  const literal = pattern.replace(/[*?].*$/s, "");
  const start = directory === "/" ? "/" : `${directory}/`;
  return literal.startsWith(start) || start.startsWith(literal);
}

/** Plans mounts in a thread, so that a large workspace delays no other caller. */
export type MountPlanner = ReturnType<typeof createMountPlanner>;

/** A plan, and its verification. */
interface StartPlan {
  planned: Planned;
  verified: Promise<VerifiedPlan>;
}

/** Only the first plan for a huge workspace takes so long. */
const maxPlanMs = 30_000;

/** Creates the planner, whose thread starts with the first plan. */
export function createMountPlanner() {
  let thread: Promise<Worker> | undefined;
  let lastId = 0;

  function startedThread(): Promise<Worker> {
    const forget = () => {
      thread = undefined;
    };
    thread ??= startThread(forget).catch((error: unknown) => {
      forget();
      throw error;
    });
    return thread;
  }

  return {
    /** Plans the mounts of one command; throws if that fails or takes too long. */
    async plan(request: PlanRequest): Promise<Planned> {
      const [id, worker] = [++lastId, await startedThread()];
      const planned = answerTo(worker, id);
      send(worker, { id, plan: request });
      return planIn(await planned);
    },
    /**
     * Plans the mounts of a command that starts now. The plan is verified while they are made, unless they are there already; the command
     * must not start before.
     */
    async planStart(request: PlanRequest, isMounted: boolean): Promise<StartPlan> {
      const [id, verifyId, worker] = [++lastId, ++lastId, await startedThread()];
      const planned = answerTo(worker, id);
      const verified = answerTo(worker, verifyId).then(verifiedIn);
      // Its failure concerns only those who wait for it.
      verified.catch(() => {});
      send(worker, { id, plan: request, verifyId, isMounted });
      return { planned: planIn(await planned), verified };
    },
    /** Lists what the command of a plan made although it may not. `request` may allow more than the plan did. */
    async created(
      request: PlanRequest,
      { open, present }: Pick<Planned, "open"> & Pick<VerifiedPlan, "present">,
    ): Promise<RestrictedPath[]> {
      const [id, worker] = [++lastId, await startedThread()];
      const listed = answerTo(worker, id);
      send(worker, { id, restricted: request, open });
      const answer = await listed;
      if (!("restricted" in answer)) throw wrongAnswer();
      const paths = new Map(present.map(({ path, identity }) => [path, identity]));
      const identities = new Set(paths.values());
      return answer.restricted.filter(
        // What was moved with its directory is not new. A link may lead elsewhere now; other files are often saved by renaming.
        ({ path, identity }) => !identities.has(identity) && (!paths.has(path) || isLink(identity)),
      );
    },
    /** Ends the thread; plans that are under way fail. */
    close(): void {
      void thread?.then((worker) => worker.terminate()).catch(() => {});
    },
  };
}

const isLink = (identity: string) => identity.includes(" ");
const wrongAnswer = () => new Error("the thread that plans mounts gave the answer to another request");

function planIn(answer: Answered): Planned {
  if ("plan" in answer) return answer.plan;
  throw wrongAnswer();
}

function verifiedIn(answer: Answered): VerifiedPlan {
  if ("verified" in answer) return answer.verified;
  throw wrongAnswer();
}

const send = (worker: Worker, request: ThreadRequest) => worker.postMessage(request);

type Answered = Exclude<ThreadAnswer, { error: string }>;

/** Waits for the answer of the thread to a request. */
async function answerTo(worker: Worker, id: number): Promise<Answered> {
  const { promise, resolve, reject } = Promise.withResolvers<Answered>();
  const onAnswer = (answer: ThreadAnswer) => {
    if (answer.id !== id) return;
    if ("error" in answer) reject(new Error(answer.error));
    else resolve(answer);
  };
  const onExit = () => reject(new Error("the thread that plans mounts has ended"));
  const timer = setTimeout(() => {
    reject(new Error(`planning took longer than ${maxPlanMs} ms`));
    void worker.terminate();
  }, maxPlanMs);
  worker.on("message", onAnswer).once("exit", onExit);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    worker.off("message", onAnswer).off("exit", onExit);
  }
}

async function startThread(onExit: () => void): Promise<Worker> {
  const worker = new Worker(assets.planThread, { env: {}, execArgv: [] });
  worker
    // Each request that waits fails with the exit; the next one starts a new thread.
    .on("error", () => {})
    .once("exit", onExit)
    .setMaxListeners(0);
  await once(worker, "message");
  worker.unref();
  return worker;
}
