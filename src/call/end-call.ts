import { ToolErrorReason, ToolErrorReasonSchema, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallGone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord, EndedChild, FinishCallStep } from "./ports.ts";
import { runKeyOf } from "./running.ts";
import { failed, isTerminal } from "./state.ts";

/**
 * Ends a call, and in the same step the open calls that it made and waits for: nothing collects their results any more, and an
 * approver must not start them. Returns the part as stored; undefined if the guard fails or the call has already ended.
 */
export async function endCall(engine: Engine, step: Omit<FinishCallStep, "children">): Promise<ToolPart | undefined> {
  let children: EndedChild[] = [];
  for (;;) {
    const written = await engine.store.finishCall({ ...step, children });
    if (written !== "open children") {
      if (written)
        for (const { ref } of children) engine.runs.get(runKeyOf(ref))?.call.controller.abort(new CallGone());
      return written;
    }
    children = await endsOfChildren(engine, step);
  }
}

async function endsOfChildren(
  { store }: Engine,
  { ref: { sessionId, callId }, part }: Pick<FinishCallStep, "ref" | "part">,
): Promise<EndedChild[]> {
  const listed = await store.listCalls({ sessionId, open: true, limit: 10_000 });
  // The list is no snapshot: a call on it may have ended since.
  const open = listed.filter((call) => !isTerminal(call.part));
  const below = (id: string): CallRecord[] =>
    open.filter(({ spec }) => spec.parent === id).flatMap((child) => [child, ...below(child.ref.callId)]);
  const end = { reason: ToolErrorReason.CANCELLED, error: withdrawnText(part) };
  return below(callId).map((child) => ({
    ref: child.ref,
    version: child.version,
    part: failed(child.part, end, store.now()),
  }));
}

function withdrawnText({ callId, state, tool }: ToolPart): string {
  const how = state.case === "error" ? ToolErrorReasonSchema.value[state.value.reason]?.localName : "completed";
  return `Withdrawn: call ${callId} (${tool}), which made this call, has ended (${how}).`;
}
