import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { assets } from "../core/assets.ts";
import type {
  Planned,
  PlanRequest,
  RestrictedPath,
  ThreadAnswer,
  ThreadRequest,
  VerifiedPlan,
} from "./plan-messages.ts";

/** Plans mounts in a thread, so that a large workspace delays no other caller. */
export interface MountPlanner {
  /** Plans the mounts of one command; throws if that fails or takes too long. */
  plan(request: PlanRequest): Promise<Planned>;
  /** Plans the mounts of a command that starts now. The plan is verified while they are made; the command must not start before. */
  planStart(request: PlanRequest): Promise<StartPlan>;
  /** Lists what the command of a plan made although it may not. `request` may allow more than the plan did. */
  created(
    request: PlanRequest,
    before: Pick<Planned, "open"> & Pick<VerifiedPlan, "present">,
  ): Promise<RestrictedPath[]>;
  /** Ends the thread; plans that are under way fail. */
  close(): void;
}

/** A plan, and its verification. */
export interface StartPlan {
  planned: Planned;
  verified: Promise<VerifiedPlan>;
}

/** Only the first plan for a huge workspace takes so long. */
const maxPlanMs = 30_000;

/** Creates the planner, whose thread starts with the first plan. */
export function createMountPlanner(): MountPlanner {
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
    async plan(request) {
      const [id, worker] = [++lastId, await startedThread()];
      const planned = answerTo(worker, id);
      send(worker, { id, plan: request });
      return planIn(await planned);
    },
    async planStart(request) {
      const [id, verifyId, worker] = [++lastId, ++lastId, await startedThread()];
      const planned = answerTo(worker, id);
      const verified = answerTo(worker, verifyId).then(verifiedIn);
      // Its failure concerns only those who wait for it.
      verified.catch(() => {});
      send(worker, { id, plan: request, verifyId });
      return { planned: planIn(await planned), verified };
    },
    async created(request, { open, present }) {
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
    close() {
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
