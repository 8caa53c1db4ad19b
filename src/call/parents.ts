import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Durability } from "../core/durability.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Tool } from "../tool/tool.ts";
import { readFormerRun } from "./adopted-body.ts";
import { executeBody } from "./body.ts";
import { hookEnvironment } from "./call-hooks.ts";
import { startedCall, whileStoreAway } from "./call-record.ts";
import { CallEnd, CallGone } from "./ends.ts";
import { beforeDrain, type Engine, whileClaiming } from "./engine.ts";
import { endOrLeave, newRunning } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { aboutCall, decodeInput, planContext } from "./prepare.ts";
import { fenceOf, type Running, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { settleCall } from "./settle.ts";
import { isTerminal } from "./state.ts";
import { findDefinition } from "./waiting.ts";

/**
 * Resumes a durable parent that has no owner, if this replica serves its workspace and definition and can enter its body now: it
 * finds the calls that it made, or the work that it waits for. Returns false if the call stays as it is.
 */
export async function resumeParent(engine: Engine, record: CallRecord): Promise<boolean> {
  const { limits, replicaId, store } = engine;
  const { ref } = record;
  const served = await servedParent(engine, record);
  if (!served) return false;
  const sent = performance.now();
  const resumed = await whileClaiming(engine, ref, () => store.resumeCall(ref, replicaId, limits.leaseMs));
  if (!resumed) return false;
  launchAgain(engine, resumed, served, sent);
  return true;
}

/** Enters the body of a durable parent again whose lease is ours, but that has no run; otherwise leaves it to recovery. */
export async function resumeOwnParent(engine: Engine, record: CallRecord, leaseConfirmed: number): Promise<void> {
  const served = await servedParent(engine, record);
  if (served) launchAgain(engine, record, served, leaseConfirmed);
  else await engine.store.parkCall(fenceOf(record), 0);
}

/** Leaves a call whose work goes on elsewhere to the replica that resumes it, at a drain of this one. */
export async function parkSurviving({ log, store }: Engine, call: Running): Promise<void> {
  const { fence, record, tool } = call;
  if (!record.remote && !tool?.durable?.survives?.(startedCall(record))) return;
  call.isParked = true;
  const isLeft = await store.parkCall(fence, 0).catch((error: unknown) => {
    log.warn("a call keeps its owner during the drain", { error, callId: record.ref.callId });
    return false;
  });
  if (isLeft) call.controller.abort(new CallGone());
  else call.isParked = false;
}

/** Returns how a durable parent is resumed, and whether its work goes on without an owner. Unknown tools are resumed elsewhere. */
export async function durabilityOf(engine: Engine, record: CallRecord) {
  const found = await findTool(engine, record);
  const { survives, canResume, waitMs, lossNote }: Durability = found?.tool.durable ?? {};
  const call = startedCall(record);
  return {
    survives: survives?.(call) ?? true,
    isChanged: found !== undefined && !hasSameBody(record, found.tool),
    onlyMakesCalls: canResume === undefined,
    waitMs,
    lossNote: lossNote?.(call) ?? "",
  };
}

/** Resumes the parent of a call whose end this replica recorded, if it is parked and none of its calls is open any more. */
export function resumeParentOf(engine: Engine, { background, parentCallId: callId, sessionId }: ToolPart): void {
  if (background || callId === "") return;
  const run = engine.runs.get(runKeyOf({ root: "", sessionId, callId }));
  if (run && !run.call.isParked) return;
  beforeDrain(engine, resumeFreed(engine, sessionId, callId)).catch((error: unknown) =>
    engine.log.warn("a call whose calls have ended is resumed by recovery", { error, callId }),
  );
}

async function resumeFreed(engine: Engine, sessionId: string, callId: string): Promise<void> {
  const open = await engine.store.listCalls({ sessionId, open: true, limit: 10_000 });
  const parent = open.find(({ ref }) => ref.callId === callId);
  if (!parent?.spec.durable || parent.owner !== "" || parent.part.state.case !== "running") return;
  if (!open.some(({ part, spec }) => spec.parent === callId && !isTerminal(part))) await resumeParent(engine, parent);
}

/** The tool and the session of a call that this replica serves. */
interface ServedCall {
  tool: Tool;
  opened: OpenSession;
}

async function servedParent(engine: Engine, record: CallRecord): Promise<ServedCall | undefined> {
  if (engine.isDraining || !record.spec.durable) return undefined;
  const found = await findTool(engine, record);
  if (!found || !hasSameBody(record, found.tool)) return undefined;
  const { survives, canResume } = found.tool.durable ?? {};
  const call = startedCall(record);
  return (survives?.(call) ?? true) && (canResume?.(call) ?? true) ? found : undefined;
}

/** True if a tool may enter the body of a started call: its definition is that of the call, or differs in words alone. */
function hasSameBody({ spec: { bodyBinding, definitionId, named } }: CallRecord, tool: Tool): boolean {
  const isSame = tool.definition.definitionId === definitionId;
  return bodyBinding === undefined ? isSame : tool.bodyBinding === bodyBinding && (isSame || !named);
}

async function findTool(engine: Engine, record: CallRecord) {
  const { log, sessions } = engine;
  const { ref } = record;
  const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
    log.warn("a call cannot be resumed: its workspace is not served here", { error: cause, callId: ref.callId });
    return undefined;
  });
  const tool = opened && findDefinition(engine, record, workspaceRoot(opened.workspace.name));
  return opened && tool && { opened, tool };
}

/** Launches the run of a started call whose lease is ours. Its body is entered again, or goes on in its worker. */
export function launchAgain(
  engine: Engine,
  record: CallRecord,
  { tool, opened }: ServedCall,
  leaseConfirmed: number,
): void {
  const { runs } = engine;
  const key = runKeyOf(record.ref);
  runs.get(key)?.call.controller.abort(new CallGone());
  const call: Running = newRunning(engine, record, opened, leaseConfirmed);
  call.isResumed = true;
  const done = runAgain(engine, call, tool).finally(() => {
    if (runs.get(key)?.call === call) runs.delete(key);
  });
  runs.set(key, { call, done });
  // A wish that was recorded after the call was read found no run here; the next round looks again.
  engine.sessionsWithNews.add(record.ref.sessionId);
  // The replica to which the wish was addressed is gone.
  if (record.cancel !== undefined) call.controller.abort(new CallEnd(ToolErrorReason.CANCELLED, record.cancel));
}

/** Enters the body again, under the start mark that the call has. It was judged before that and is not judged again. */
async function runAgain(engine: Engine, call: Running, tool: Tool): Promise<ToolPart | undefined> {
  try {
    call.tool = tool;
    const input = decodeInput(engine, tool, call.record);
    const environment = (cwd: string) => hookEnvironment(call.hooks, cwd);
    const plan = await tool.plan(input, planContext(engine, aboutCall(call.record, tool), call.opened, environment));
    if (call.record.remote) call.former = await whileStoreAway(engine, call, () => readFormerRun(engine, call.record));
    const returned = await executeBody(engine, call, tool, { input, plan, outside: [], files: { read: [], edit: [] } });
    return await settleCall(engine, call, plan, returned);
  } catch (cause) {
    return await endOrLeave(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
  }
}
