import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { assets } from "../core/assets.ts";
import type { MountPlan } from "./mount-plan.ts";
import type { PlanAnswer, PlanRequest } from "./plan-thread.ts";

/** Plans mounts in a thread, so that a large workspace delays no other caller. */
export interface MountPlanner {
  /** Plans the mounts of one command; throws if that fails or takes too long. */
  plan(request: PlanRequest): Promise<MountPlan>;
}

/** Only the first plan for a huge workspace takes so long. */
const maxPlanMs = 30_000;

let thread: Promise<Worker> | undefined;
let lastId = 0;

/** Creates the planner. All of a process share one thread, which starts with the first plan. */
export function createMountPlanner(): MountPlanner {
  return {
    async plan(request) {
      const worker = await startedThread();
      const { promise, resolve, reject } = Promise.withResolvers<MountPlan>();
      const id = ++lastId;
      const onAnswer = (answer: PlanAnswer) => {
        if (answer.id !== id) return;
        if ("plan" in answer) resolve(answer.plan);
        else reject(new Error(answer.error));
      };
      const onExit = () => reject(new Error("the thread that plans mounts has ended"));
      const timer = setTimeout(() => {
        reject(new Error(`planning took longer than ${maxPlanMs} ms`));
        void worker.terminate();
      }, maxPlanMs);
      worker.on("message", onAnswer).once("exit", onExit);
      worker.postMessage({ id, request });
      try {
        return await promise;
      } finally {
        clearTimeout(timer);
        worker.off("message", onAnswer).off("exit", onExit);
      }
    },
  };
}

function startedThread(): Promise<Worker> {
  thread ??= startThread().catch((error: unknown) => {
    thread = undefined;
    throw error;
  });
  return thread;
}

async function startThread(): Promise<Worker> {
  const worker = new Worker(assets.planThread, { env: {}, execArgv: [] });
  worker
    // Each request that waits fails with the exit; the next one starts a new thread.
    .on("error", () => {})
    .once("exit", () => {
      thread = undefined;
    })
    .setMaxListeners(0);
  await once(worker, "message");
  worker.unref();
  return worker;
}
