import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type WorkerAnswer,
  type WorkerCancel,
  WorkerFailure,
  type WorkerResultSchema,
  type WorkerStart,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { bodyContext } from "./body-context.ts";
import { completedOf, failedOf } from "./encode-result.ts";
import type { Plans } from "./plans.ts";
import { type OpenBody, openBody, type Send } from "./running-body.ts";

/** The running bodies of a process. */
export interface Bodies {
  /** Enters a body and sends its result. */
  start(start: WorkerStart): Promise<void>;
  cancel(cancel: WorkerCancel): void;
  /** Stops a body; its result counts for a time, then it is STOPPED. */
  stop(assignment: string, message: string, graceMs: number): void;
  /** Hands an answer of the service to the body that asked. */
  answer(answer: WorkerAnswer): void;
  /** Forgets a body, and stops it if it runs. */
  end(assignment: string): void;
}

/** Creates it, without bodies. */
export function createBodies(plans: Plans, send: Send): Bodies {
  const bodies = new Map<string, OpenBody>();
  const made: Bodies = {
    async start(start) {
      const body = openBody(start, send, () => bodies.delete(start.assignment));
      bodies.set(start.assignment, body);
      const value = await runBody(plans, body);
      body.finish({ case: "result", value });
    },
    stop(assignment, message, graceMs) {
      const body = bodies.get(assignment);
      if (!body || body.signal.aborted) return;
      body.stop(new DOMException(message, "AbortError"));
      const stopped = { kind: WorkerFailure.STOPPED, message: "the body did not stop in time" };
      // The body may ignore its signal; what it still does has no effect on the call.
      setTimeout(
        () => body.finish({ case: "result", value: { outcome: { case: "failed", value: stopped } } }),
        graceMs,
      ).unref();
    },
    cancel: ({ assignment, message, graceMs }) => made.stop(assignment, message || "The call was cancelled.", graceMs),
    answer({ assignment, number, answer }) {
      const body = bodies.get(assignment);
      const waiting = body?.requests.get(number);
      body?.requests.delete(number);
      if (answer.case === "problem") waiting?.reject(new ToolFailure(answer.value));
      else waiting?.resolve(answer);
    },
    end(assignment) {
      const body = bodies.get(assignment);
      if (!body) return;
      bodies.delete(assignment);
      body.close();
      body.stop(new DOMException("The call is over.", "AbortError"));
    },
  };
  return made;
}

async function runBody(plans: Plans, body: OpenBody): Promise<MessageInitShape<typeof WorkerResultSchema>> {
  const { call, detail } = body.start;
  try {
    if (!call) throw new Error("the service starts no call");
    const { tool, input, plan, context } = await plans.enter(call, detail);
    const result = await tool.execute(input, plan, { ...context, ...bodyContext(body, call) });
    return { outcome: { case: "completed", value: await completedOf(body, result) } };
  } catch (error) {
    return { outcome: { case: "failed", value: failedOf(error, body.signal) } };
  }
}
