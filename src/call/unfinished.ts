import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ExecutorLost, NotEntered, WorkerElsewhere } from "../tool/errors.ts";
import { maxIdempotentAttempts } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { Running } from "./running.ts";
import { failCall } from "./settle.ts";

/** Ends a call without a result; leaves it, if a worker can still bring one or may be given the call again. */
export async function endOrLeave(engine: Engine, call: Running, cause: unknown): Promise<ToolPart | undefined> {
  if (!call.signal.aborted && (await leaveCall(engine, call, cause))) return undefined;
  return await failCall(engine, call, cause);
}

async function leaveCall({ log, store }: Engine, call: Running, cause: unknown): Promise<boolean> {
  const { fence, tool } = call;
  const { attempts, ref, remote } = call.record;
  if (!remote) return false;
  try {
    if (cause instanceof NotEntered) {
      // Recovery claims it: a worker that refuses again and again is asked once a second.
      await store.restartCall(ref, remote);
      return true;
    }
    const mayRepeat = cause instanceof ExecutorLost && tool?.idempotent && attempts < maxIdempotentAttempts;
    if (!mayRepeat && !(cause instanceof WorkerElsewhere)) return false;
    await store.parkCall(fence, 0);
  } catch (error) {
    // The lease lapses, and recovery leaves the call to its worker.
    log.warn("a call of a worker keeps its owner", { error, callId: ref.callId });
  }
  return true;
}
