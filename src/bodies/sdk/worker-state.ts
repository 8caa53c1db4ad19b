import type { MessageInitShape } from "@bufbuild/protobuf";
import type { WorkerHelloSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { ConnectOptions } from "../../client/find-server.ts";
import { boundTool } from "../../tool/define-tool.ts";
import type { DefinedTool } from "../../tool/tool.ts";
import { type Bodies, createBodies } from "./bodies.ts";
import type { UsedConnection } from "./connection.ts";
import { createHeldAssignments, type HeldAssignments, type SentMessage } from "./held-assignments.ts";
import { createPlans, notHere, type Plans } from "./plans.ts";

/** Settings of a worker at its start. */
export interface WorkerStartup {
  /** The parts of `hello` that do not change. */
  readonly hello: MessageInitShape<typeof WorkerHelloSchema>;
  readonly connectOptions: ConnectOptions;
  /** Writes a line for operators. */
  readonly log: (line: string) => void;
}

/** State of a worker, over all of its connections. */
export interface Worker extends WorkerStartup {
  readonly plans: Plans;
  readonly bodies: Bodies;
  readonly held: HeldAssignments;
  /** Known assignments: true if the body was entered at some time, false if it never will be. */
  readonly known: Map<string, boolean>;
  /** Resolves when the worker has drained. */
  readonly drained: PromiseWithResolvers<void>;
  /** Number of the last connection. */
  connection: number;
  /** Sends on the current connection; undefined without one. */
  send: ((message: SentMessage) => void) | undefined;
  /** A connection that is left open until the next one is welcome. */
  previous: UsedConnection | undefined;
  /** Store of the held assignments; empty before the first welcome. */
  storeId: string;
  resumeMs: number;
  /** Stops the bodies when the service is away for too long. */
  selfStop: NodeJS.Timeout | undefined;
  isDraining: boolean;
  /** The service has confirmed that it sends no more work. */
  isDismissed: boolean;
  hasDrained: boolean;
  /** The last line of the log, so that it is not repeated. */
  lastLine: string;
}

/** Creates a worker without a connection. */
export function createWorker(tools: readonly DefinedTool[], startup: WorkerStartup): Worker {
  const byName = new Map(tools.map(boundTool).map((tool) => [tool.name, tool]));
  const held = createHeldAssignments();
  const plans = createPlans({
    async toolFor(name) {
      const tool = byName.get(name);
      if (tool) return tool;
      throw new Error(`this worker has no tool ${name}`);
    },
    // The files of a workspace are on the machine of the service.
    workspaceOf: async ({ workspace }) => ({ name: workspace, directory: "", resolve: () => notHere("workspace") }),
  });
  const worker: Worker = {
    ...{ ...startup, plans, held, known: new Map(), drained: Promise.withResolvers() },
    bodies: createBodies(plans, async (message) => {
      if (message) await sendKept(worker, message);
    }),
    ...{ connection: 0, storeId: "", resumeMs: startup.hello.resumeMs ?? 0, lastLine: "" },
    ...{
      send: undefined,
      previous: undefined,
      selfStop: undefined,
      isDraining: false,
      isDismissed: false,
      hasDrained: false,
    },
  };
  return worker;
}

/** Sends a message, now and on later connections until it is stored. Resolves when its body may write more. */
export async function sendKept(worker: Worker, message: SentMessage): Promise<void> {
  const kept = worker.held.keep(message);
  worker.send?.(message);
  await kept;
}

/** Takes no more work, and leaves when each assignment is over. */
export function drainWorker(worker: Worker): void {
  if (worker.isDraining) return;
  worker.isDraining = true;
  worker.send?.(drainMessage);
  leaveIfDrained(worker);
}

/** Reports that this worker takes no more work. */
export const drainMessage = { case: "capacity", value: { capacity: 0, draining: true } } as const;

/** Takes the confirmation that no more work comes. */
export function dismissWorker(worker: Worker): void {
  worker.isDismissed = true;
  leaveIfDrained(worker);
}

/**
 * Ends the work of a worker that drains and holds nothing any more. It waits for the service to confirm that, for a while: a call whose
 * start is still under way would wait for this process in vain.
 */
export function leaveIfDrained(worker: Worker): void {
  if (!worker.isDraining || worker.held.size > 0) return;
  // Without a store it was never connected.
  if (!worker.isDismissed && worker.storeId !== "") {
    setTimeout(() => dismissWorker(worker), dismissalMs).unref();
    return;
  }
  worker.hasDrained = true;
  worker.drained.resolve();
}

const dismissalMs = 5_000;

/** Logs a line, unless it is the last one again. */
export function logOnce(worker: Worker, line: string): void {
  if (line !== worker.lastLine) worker.log(line);
  worker.lastLine = line;
}
