import { create } from "@bufbuild/protobuf";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ExecutorLost, NotEntered, WorkerElsewhere } from "../tool/errors.ts";
import type { RemoteMark } from "../tool/remote.ts";
import { maxIdempotentAttempts } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { Running } from "./running.ts";
import { failCall } from "./settle.ts";
import { offerAgain, waitAgain } from "./worker-queue.ts";

/** Ends a call without a result; leaves it, if a worker can still bring one or may be given the call again. */
export async function endOrLeave(engine: Engine, call: Running, cause: unknown): Promise<ToolPart | undefined> {
  if (!call.signal.aborted && (await leaveCall(engine, call, cause))) return undefined;
  return await failCall(engine, call, cause);
}

/** Lets a call whose body was not entered wait again, and offers it to the workers of all replicas. */
async function giveBack(engine: Engine, call: Running, mark: RemoteMark, why: string): Promise<void> {
  const { store } = engine;
  const { ref, part } = call.record;
  const title = `Waiting for a worker that runs ${part.tool}: ${why}`;
  await store.recordEvents(call.fence, [create(ToolProgressSchema, { callId: ref.callId, title })]);
  const queued = waitAgain(engine, call.record, call.tool);
  if (await store.restartCall(ref, mark, queued)) await offerAgain(engine, ref, queued.definitionId);
}

async function leaveCall(engine: Engine, call: Running, cause: unknown): Promise<boolean> {
  const { log, store } = engine;
  const { fence, tool } = call;
  const { attempts, ref, remote } = call.record;
  if (!remote) return false;
  try {
    if (cause instanceof NotEntered) {
      await giveBack(engine, call, remote, cause.message);
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
