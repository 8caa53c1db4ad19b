import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { approveCall } from "./approve.ts";
import { executeBody } from "./body.ts";
import { CallEnd } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { resolveTool, runBeforeHooks } from "./prepare.ts";
import type { Running, Startable } from "./running.ts";
import { settleCall } from "./settle.ts";
import { adviceText, stopOf, stopText } from "./stopped.ts";
import { endOrLeave } from "./unfinished.ts";

/**
 * Runs a call that this replica holds the lease of, from resolving its tool to its terminal state. Never throws: every failure
 * becomes the call's state, unless the call is no longer ours to write. Returns the call as this run ended it.
 */
export async function runCall(engine: Engine, call: Running, ready?: Startable): Promise<ToolPart | undefined> {
  try {
    if (!ready) await engine.registry.refresh(workspaceRoot(call.opened.workspace.name));
    const tool = ready?.tool ?? resolveTool(engine, call.record, call.opened);
    call.tool = tool;
    await runBeforeHooks(engine, call);
    const approved = ready ?? (await approveCall(engine, call, tool));
    // It may have been stopped while its start mark was written.
    const stop = stopOf(engine, call.opened, call.record.part.agent);
    if (stop) throw new CallEnd(ToolErrorReason.CANCELLED, `${stopText(stop)}. ${adviceText}`);
    const returned = await executeBody(engine, call, tool, approved);
    return await settleCall(engine, call, approved.plan, returned);
  } catch (cause) {
    return await endOrLeave(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
  }
}
