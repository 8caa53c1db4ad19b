import * as z from "zod";
import { defineTool } from "../../src/tool/define-tool.ts";
import { ExecutorLost, NotEntered, ToolFailure } from "../../src/tool/errors.ts";
import { assignmentOf, callOfAssignment, type RemoteMark, type Reservation } from "../../src/tool/remote.ts";
import type { Tool, ToolContext, ToolResult } from "../../src/tool/tool.ts";
import type { End } from "./model.ts";
import type { Replicas } from "./replicas.ts";

/** A worker of a test, whose processes keep the bodies that they have entered, with their results, over all connections. */
export type ModelWorker = ReturnType<typeof createModelWorker>;

/** A body that the process has entered. */
interface Body {
  report: ToolResult | ToolFailure | undefined;
  readonly result: PromiseWithResolvers<ToolResult>;
}

/** Time for which a process that is gone is waited for. A run of commands stops the worker at most three times, within a day. */
const resumeMs = 4 * 3_600_000;

export function createModelWorker(replicas: () => Replicas, onEntry: (call: string) => void) {
  const held = new Map<string, Body>();
  /** Assignments that it has promised never to enter. */
  const denied = new Set<string>();
  let [at, connection, count, process] = ["", 0, 0, 1];
  const markOf = (assignment: string, over = connection): RemoteMark => ({
    ...{ principal: "ci", instance: `wrk_${process}`, resumeMs },
    ...{ connection: over, assignment },
  });

  async function run({ sessionId, callId, remote, signal }: ToolContext, gone: AbortSignal): Promise<ToolResult> {
    if (!remote) throw new Error("the body got no worker");
    const { assignment, instance, connection: over } = remote.mark;
    if (!remote.isAdopted) {
      const isRead = at !== "" && over === connection && instance === markOf("").instance;
      // The start was sent over a connection that is not read any more.
      if (!isRead || denied.has(assignment)) throw new NotEntered("the line was cut");
      held.set(assignment, { report: undefined, result: Promise.withResolvers() });
      held.get(assignment)?.result.promise.catch(() => undefined);
      onEntry(`${sessionId}/${callId}`);
    }
    const body = held.get(assignment);
    if (!body) throw new ExecutorLost("its worker is gone");
    const { promise, reject } = Promise.withResolvers<never>();
    const stop = AbortSignal.any([signal, gone]);
    stop.addEventListener("abort", () => reject(stop.reason), { once: true });
    if (stop.aborted) reject(stop.reason);
    return await Promise.race([promise, body.result.promise]);
  }

  /** Delivers what was reported, while it is connected. */
  function deliver(): void {
    if (at === "") return;
    for (const { report, result } of held.values())
      if (report instanceof ToolFailure) result.reject(report);
      else if (report) result.resolve(report);
  }

  return {
    toolOf: (replica: string, gone: AbortSignal): Tool =>
      defineTool({
        name: "deploy",
        description: "Runs in a worker.",
        input: z.object({ key: z.string() }),
        timeoutMs: 1_000_000_000,
        plan: ({ key }) => ({ title: key, asks: [] }),
        remote: {
          queueMs: 1_000_000_000,
          reserve: (call) => {
            if (at !== replica) return undefined;
            const mark = markOf(assignmentOf(`${count++}`.padStart(22, "0"), call));
            return { mark, worker: "ci", buildId: "", free() {} } as Reservation;
          },
          isPaused: () => false,
          unavailable: async () => "no worker runs",
        },
        execute: (_input, { plan: _plan, ...ctx }) => run(ctx, gone),
      }),

    /** Connects to a replica with what it holds. */
    async connect(replica: string): Promise<void> {
      const { calls } = replicas().at(replica);
      connection += 1;
      at = replica;
      const over = connection;
      deliver();
      for (const assignment of [...held.keys()]) {
        const call = callOfAssignment(assignment);
        const outcome = call && (await calls.adopt(call, markOf(assignment, over)));
        if (outcome === "ended") held.delete(assignment);
      }
      calls.takeQueued();
    },

    /** Cuts its line. Without a replica whichever it has. */
    leave(replica = at): void {
      if (at === replica) at = "";
    },

    /** Reports the result of a body; the first report counts. */
    report(id: string, end: End): void {
      for (const [assignment, body] of held) {
        const call = callOfAssignment(assignment);
        if (id !== `${call?.sessionId}/${call?.callId}`) continue;
        body.report ??= end === "FAILED" ? new ToolFailure("The test made it fail.") : { output: "done" };
      }
      deliver();
    },

    /** Ends the process; another one starts. Its calls end, since time passes until nobody waits for it. */
    async crash(): Promise<void> {
      for (const { result } of held.values()) result.reject(new ExecutorLost("its worker has ended"));
      held.clear();
      [at, connection, process] = ["", 0, process + 1];
      replicas().advance(resumeMs + 3_600_000);
      await replicas().each(({ calls }) => calls.renew());
      await replicas().each(({ calls }) => calls.recover());
    },

    /** Answers a replica that asks for the body of a call without a run. */
    async probe(replica: string, { assignment, connection: started, instance }: RemoteMark): Promise<void> {
      const call = callOfAssignment(assignment);
      if (at !== replica || connection < started || instance !== markOf("").instance || !call) return;
      const { calls } = replicas().at(replica);
      if (held.has(assignment)) return void (await calls.adopt(call, markOf(assignment)));
      denied.add(assignment);
      await calls.restartUnentered(call, markOf(assignment));
    },
  };
}
