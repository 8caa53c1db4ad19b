import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import type { Tool } from "../tool/tool.ts";
import { executeBody } from "./body.ts";
import { hookEnvironment } from "./call-hooks.ts";
import type { Engine } from "./engine.ts";
import { newRunning } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { decodeInput, planContext } from "./prepare.ts";
import { type Running, runKeyOf } from "./running.ts";
import { beforeDrain, whileClaiming } from "./runs.ts";
import type { OpenSession } from "./sessions.ts";
import { failCall, settleCall } from "./settle.ts";
import { isTerminal } from "./state.ts";

/**
 * Resumes a durable parent that has no owner, if this replica serves its workspace and definition: enters its body again, which
 * finds the calls that it made. Returns false if the call stays as it is.
 */
export async function resumeParent(engine: Engine, record: CallRecord): Promise<boolean> {
  const { limits, replicaId, store } = engine;
  const { ref } = record;
  const served = await servedParent(engine, record);
  if (!served) return false;
  const sent = performance.now();
  const resumed = await whileClaiming(engine, ref, () => store.resumeCall(ref, replicaId, limits.leaseMs));
  if (!resumed) return false;
  launchParent(engine, resumed, served, sent);
  return true;
}

/** Enters the body of a durable parent again whose lease is ours, but that has no run. */
export async function resumeOwnParent(engine: Engine, record: CallRecord, leaseConfirmed: number): Promise<void> {
  const served = await servedParent(engine, record);
  if (served) launchParent(engine, record, served, leaseConfirmed);
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

/** A durable parent that this replica serves. */
interface ServedParent {
  tool: Tool;
  opened: OpenSession;
}

async function servedParent(engine: Engine, { part, ref, spec }: CallRecord): Promise<ServedParent | undefined> {
  const { log, registry, sessions } = engine;
  if (engine.isDraining || !spec.durable) return undefined;
  const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
    log.warn("a call cannot be resumed: its workspace is not served here", { error: cause, callId: ref.callId });
    return undefined;
  });
  const tool = opened && registry.get(part.tool, workspaceRoot(opened.workspace.name));
  return opened && tool?.definition.definitionId === spec.definitionId ? { tool, opened } : undefined;
}

function launchParent(
  engine: Engine,
  record: CallRecord,
  { tool, opened }: ServedParent,
  leaseConfirmed: number,
): void {
  const { runs } = engine;
  const key = runKeyOf(record.ref);
  const call = { ...newRunning(engine, record, opened, leaseConfirmed), isResumed: true as const };
  const done = runAgain(engine, call, tool).finally(() => {
    if (runs.get(key)?.call === call) runs.delete(key);
  });
  runs.set(key, { call, done });
}

/** Enters the body again, under the start mark that the call has. It was judged before that and is not judged again. */
async function runAgain(engine: Engine, call: Running, tool: Tool): Promise<ToolPart | undefined> {
  try {
    call.tool = tool;
    const input = decodeInput(engine, tool, call.record);
    const environment = (cwd: string) => hookEnvironment(call.hooks, cwd);
    const plan = await tool.plan(input, planContext(engine, call.record, call.opened, environment));
    const returned = await executeBody(engine, call, tool, { input, plan, outside: [], files: { read: [], edit: [] } });
    return await settleCall(engine, call, plan, returned);
  } catch (cause) {
    return await failCall(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
  }
}
