import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { PermissionStore } from "../approval/ports.ts";
import type { TraceContext } from "../tool/tool.ts";
import type { CallRecord, CallStore } from "./ports.ts";
import { isTerminal } from "./state.ts";

/** The steps of a call that may take long. */
export type CallStep = "plan" | "wait" | "execute";

/** Is told how calls go. Nothing in it throws or takes long: it must not cost the call. */
export interface CallObserver {
  /** This replica runs the call from now on. */
  began(call: CallRecord): CallObservation;
  /** A step of this replica wrote the end of a call. Of all replicas exactly one is told of each end. */
  ended(end: { part: ToolPart; isKnownTool: boolean }): void;
}

/** What is seen of one call while it runs here. */
export interface CallObservation {
  /** Does a step; what the work starts belongs to the trace that it is given. */
  step<T>(name: CallStep, work: (trace: TraceContext | undefined) => Promise<T>): Promise<T>;
  /** This replica no longer runs the call: it has ended, or another one may go on with it. */
  over(part: ToolPart): void;
}

/** The same store; it tells of every end of a call that a step of it has written, whoever asked for the step. */
export function tellingEnds<S extends { calls: CallStore; permissions: PermissionStore }>(
  store: S,
  ended: (part: ToolPart) => void,
): S {
  const calls: Pick<CallStore, "finishCall"> = {
    async finishCall(step) {
      const written = await store.calls.finishCall(step);
      if (written) ended(written);
      return written;
    },
  };
  const permissions: Pick<PermissionStore, "settle"> = {
    async settle(settlement) {
      const settled = await store.permissions.settle(settlement);
      for (const { part } of settled.result === "won" ? settlement.calls : [])
        if (part && isTerminal(part)) ended(part);
      return settled;
    },
  };
  return {
    ...store,
    calls: Object.setPrototypeOf(calls, store.calls),
    permissions: Object.setPrototypeOf(permissions, store.permissions),
  };
}
