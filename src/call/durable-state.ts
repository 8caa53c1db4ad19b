import type { DurableState, StartedCall } from "../core/durability.ts";
import { noteCall } from "./call-record.ts";
import { CallGone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { ensureRecorded } from "./first-step.ts";
import type { CallRecord } from "./ports.ts";
import type { Running } from "./running.ts";
import { isTerminal } from "./state.ts";

/** Returns the state of a durable call, for its body. */
export function durableState(engine: Engine, call: Running): DurableState {
  return {
    isResumed: call.isResumed === true,
    get memo() {
      return startedCall(call.record).memo;
    },
    async store(value) {
      await ensureRecorded(call);
      const memo = JSON.stringify(value);
      await noteCall(engine, call.fence, { memo });
      call.record = { ...call.record, memo };
    },
    async isLeft() {
      if (!(call.signal.reason instanceof CallGone)) return false;
      if (call.isParked) return true;
      const { sessionId, callId } = call.record.ref;
      try {
        const record = await engine.store.getCall(sessionId, callId);
        return record !== undefined && !isTerminal(record.part);
      } catch {
        // Another replica may have the call.
        return true;
      }
    },
  };
}

/** Returns a started call as its tool knows it. */
export function startedCall({ ref: { sessionId, callId }, memo }: Pick<CallRecord, "ref" | "memo">): StartedCall {
  return { sessionId, callId, memo: memo === undefined ? undefined : JSON.parse(memo) };
}
