import { createHash } from "node:crypto";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { RequestError } from "../core/request-error.ts";
import type { ChildCall, ChildResult, TraceContext } from "../tool/tool.ts";
import type { CallRecord } from "./ports.ts";
import type { OpenSession } from "./sessions.ts";

/** Calls that start together: each arrives when it may start, and goes on when all have arrived. */
export interface StartGate {
  readonly isOpen: boolean;
  /** Throws the signal's reason if that is aborted before. */
  arrive(signal: AbortSignal): Promise<void>;
}

/** Makes a gate for so many calls. */
export function createStartGate(count: number): StartGate {
  const all = Promise.withResolvers<void>();
  let missing = count;
  return {
    get isOpen() {
      return missing === 0;
    },
    async arrive(signal) {
      missing -= 1;
      if (missing === 0) all.resolve();
      const { promise: aborted, reject } = Promise.withResolvers<never>();
      const abort = () => reject(signal.reason);
      signal.addEventListener("abort", abort, { once: true });
      if (signal.aborted) abort();
      try {
        await Promise.race([all.promise, aborted]);
      } finally {
        signal.removeEventListener("abort", abort);
      }
    },
  };
}

/** The call that a tool's calls belong to. */
export interface Parent {
  record: CallRecord;
  opened: OpenSession;
  signal: AbortSignal;
  /** What its calls belong to: the step that makes them. */
  trace?: TraceContext;
}

/** A call that is to be made for another one. */
export interface ChildRequest extends ChildCall {
  callId: string;
  gate: StartGate | undefined;
}

/** Makes calls for a tool: each is judged, asked for and recorded like any other, and ends when the call it is made for is aborted. */
export function createChildren({
  enter,
  ended,
  cancel,
}: {
  enter(parent: Parent, request: ChildRequest): Promise<CallRef>;
  ended(ref: CallRef): Promise<ToolPart>;
  cancel(ref: CallRef, message: string): Promise<unknown>;
}) {
  return async (
    parent: Parent,
    children: readonly ChildCall[],
    { atomic }: { atomic: boolean },
  ): Promise<ChildResult[]> => {
    const gate = atomic ? createStartGate(children.length) : undefined;
    const entered = new Map<string, CallRef>();
    /** Why those that are not over yet are to end, once they are. */
    let over: string | undefined;

    async function endAll(why: string): Promise<void> {
      over ??= why;
      await Promise.all([...entered.values()].map((ref) => cancel(ref, why)));
    }

    const stop = () => {
      // What cannot be cancelled now is, like this call, given up by its own deadline.
      endAll("The call that made this one was stopped.").catch(() => {});
    };

    async function make(child: ChildCall, number: number): Promise<ChildResult> {
      const callId = childId(parent.record.ref.callId, number);
      try {
        const ref = await enter(parent, { ...child, callId, gate });
        entered.set(callId, ref);
        if (over !== undefined) await cancel(ref, over);
        return resultOf(callId, await ended(ref));
      } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        return { callId, status: "error", title: child.tool, text: error.message, attachments: [] };
      } finally {
        entered.delete(callId);
        if (gate && !gate.isOpen) await endAll(`Nothing was run, because call ${callId} beside it could not start.`);
      }
    }

    parent.signal.addEventListener("abort", stop, { once: true });
    try {
      return await Promise.all(children.map((child, index) => make(child, index + 1)));
    } finally {
      parent.signal.removeEventListener("abort", stop);
    }
  };
}

/** Whether a call waits for others before it starts: another replica does not know of them, so it must not take it up. */
export function startsWithOthers({ metadata }: ToolPart): boolean {
  return metadata?.startsWithOthers === true;
}

/** Ids have at most 128 characters. */
function childId(parentId: string, number: number): string {
  const prefix = parentId.length <= 120 ? parentId : createHash("sha256").update(parentId).digest("hex");
  return `${prefix}.${number}`;
}

function resultOf(callId: string, { state, tool }: ToolPart): ChildResult {
  if (state.case === "completed") {
    return {
      callId,
      status: "completed",
      title: state.value.title,
      text: state.value.output,
      attachments: state.value.attachments,
    };
  }
  const text = state.case === "error" ? state.value.error : "It has not ended.";
  return { callId, status: "error", title: tool, text, attachments: [] };
}
