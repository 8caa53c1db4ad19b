import { ToolErrorReason, ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Tool } from "../tool/tool.ts";
import { endAsRead, staleText } from "./ends.ts";
import type { Engine, Review } from "./engine.ts";
import type { CallRecord, CallWithAsks } from "./ports.ts";
import { runKeyOf } from "./running.ts";
import { findDefinition } from "./waiting.ts";

/** Creates the state before the first look. */
export const createReview = (): Review => ({ workspaces: new Set(), unserved: new Map(), next: 0 });

const toolChanged = "the tool has changed since";
const serviceUpgraded = "Toolgate was upgraded";
/** Time that a source of tools has to offer a tool again: an MCP server connects, an embedding program registers. */
const maxMissingMs = 60_000;
/** Time that a worker has to connect again while a later definition serves. */
const maxAwayMs = 15_000;
const againMs = 5_000;
const pageSize = 500;

/**
 * Compares calls that wait for an answer with the definitions that serve now: at the first look after the start, and when tools
 * have changed. An approval names the definition that it was asked for, so without this it would be given for nothing.
 */
export async function reviewWaiting(engine: Engine): Promise<void> {
  const { registry, review } = engine;
  for (const workspace of review.workspaces) await registry.refresh(workspace);
  const revision = registry.revision();
  const isDue = review.unserved.size > 0 && performance.now() >= review.next;
  if (review.revision === revision && !isDue) return;
  const look: Look = {
    isFirst: review.revision === undefined,
    refreshed: new Set(),
    seen: new Set(),
    unserved: new Map(),
  };
  for (let after: string | undefined; ; ) {
    const page = await engine.listAsks({ limit: pageSize, ...(after !== undefined && { after }) });
    for (const ask of page) await reviewAsk(engine, ask, look);
    after = page.at(-1)?.request.id;
    if (page.length < pageSize) break;
  }
  for (const workspace of review.workspaces) if (!look.refreshed.has(workspace)) review.workspaces.delete(workspace);
  Object.assign(review, { revision, unserved: look.unserved, next: performance.now() + againMs });
}

/** One pass over all open asks. */
interface Look {
  readonly isFirst: boolean;
  /** Workspaces whose tools were loaded. */
  readonly refreshed: Set<string>;
  readonly seen: Set<string>;
  readonly unserved: Map<string, number>;
}

async function reviewAsk(engine: Engine, ask: AskRecord, look: Look): Promise<void> {
  const { foreign, registry, review, sessions } = engine;
  const { call, definitionId, part, request } = ask;
  const key = runKeyOf(call);
  // A body that asks goes on with the tool that it is.
  if (look.seen.has(key) || part.state.case !== "pending") return;
  look.seen.add(key);
  // Another replica may serve its workspace.
  const opened = await sessions.load(call.sessionId).catch(() => undefined);
  if (!opened) return;
  const workspace = workspaceRoot(opened.workspace.name);
  if (!look.refreshed.has(workspace)) await registry.refresh(workspace);
  look.refreshed.add(workspace);
  review.workspaces.add(workspace);
  const isDelegated = part.executor === ToolExecutor.DELEGATED;
  const serving = isDelegated ? foreign.tool(part.tool) : registry.get(part.tool, workspace);
  const isCurrent = serving?.definition.definitionId === definitionId;
  // A definition that was never here may be a later one of another replica, of which this one has not heard.
  const isKnown = look.isFirst || !engine.store.isShared || registry.wasRegistered(definitionId);
  if (!isCurrent && !isKnown && !review.unserved.has(key)) return;
  if (isCurrent ? !look.isFirst || request.view : await mayServeAgain(engine, ask, { workspace, serving, look }))
    return;
  const found = await engine.store.getCallWithAsks(call);
  if (!found || !isWaiting(found.record)) return;
  if (isCurrent) await rebind(engine, found.record, serving, serviceUpgraded);
  else await rebindOrEnd(engine, found, serving);
}

/** True if the definition of a call serves elsewhere, or may serve again soon. */
async function mayServeAgain(
  { remoteTools, review }: Engine,
  { call, definitionId, part: { executor } }: AskRecord,
  { workspace, serving, look }: { workspace: string; serving: Tool | undefined; look: Look },
): Promise<boolean> {
  const now = performance.now();
  const isOfWorkers = remoteTools?.find(definitionId, workspace) !== undefined;
  // Its workers are away, and nothing took their place.
  if (isOfWorkers && serving === undefined) return true;
  if (!isOfWorkers && serving !== undefined) return false;
  const isServed = isOfWorkers && (await remoteTools?.isServed(definitionId));
  const since = isServed ? now : (review.unserved.get(runKeyOf(call)) ?? now);
  const isFile = executor === ToolExecutor.TOOL_PROCESS;
  if (!isServed && now - since >= (isOfWorkers ? maxAwayMs : isFile ? 0 : maxMissingMs)) return false;
  look.unserved.set(runKeyOf(call), since);
  return true;
}

const isWaiting = ({ attempts, mayHaveRun, owner, part }: CallRecord) =>
  part.state.case === "pending" && owner === "" && attempts === 0 && mayHaveRun === undefined;

/**
 * Resolves an orphaned call that no replica claimed, and whose definition does not serve here any more. Returns false if that is not so:
 * its definition serves, or its workspace does not.
 */
export async function rebindUnclaimed(engine: Engine, found: CallWithAsks): Promise<boolean> {
  const { record } = found;
  if (!isWaiting(record) || record.spec.definitionId === "") return false;
  const opened = await engine.sessions.load(record.ref.sessionId).catch(() => undefined);
  if (!opened) return false;
  const workspace = workspaceRoot(opened.workspace.name);
  await engine.registry.refresh(workspace);
  const tool = findDefinition(engine, record, workspace);
  if (tool?.definition.definitionId === record.spec.definitionId) return false;
  return await rebindOrEnd(engine, found, tool);
}

/**
 * Loads the file of a call's tool again before an approval of the call is recorded, and withdraws what was asked if the file was saved
 * since. Another replica may have the file as it was, so that a shared store keeps the request.
 */
export async function rebindBeforeApproval(engine: Engine, found: CallWithAsks): Promise<void> {
  const { part, ref } = found.record;
  if (part.executor !== ToolExecutor.TOOL_PROCESS) return;
  if (!engine.store.isShared) return void (await rebindUnclaimed(engine, found));
  const opened = await engine.sessions.load(ref.sessionId).catch(() => undefined);
  if (opened) await engine.registry.refresh(workspaceRoot(opened.workspace.name));
}

/**
 * Binds a call that waits to the definition that serves now if it takes the same input and asks the same, so that it is asked for
 * again; ends it otherwise, or if its caller named the definition. Returns false if the call has changed since it was read.
 */
export async function rebindOrEnd(
  engine: Engine,
  { record, asks }: CallWithAsks,
  tool: Tool | undefined,
): Promise<boolean> {
  const { part, spec } = record;
  const binding = asks.at(-1)?.request.binding ?? "";
  // A command is bound to its directory, too.
  if (tool && !spec.named && binding.split(":")[0] === tool.permissionBinding)
    return await rebind(engine, record, tool, toolChanged);
  const end = { reason: ToolErrorReason.STALE_TOOL, error: staleText(part.tool, tool !== undefined) };
  return await endAsRead(engine, record, end);
}

async function rebind(
  { store }: Engine,
  { ref, spec, version }: CallRecord,
  { definition: { definitionId } }: Tool,
  why: string,
): Promise<boolean> {
  const rebound = { why, time: store.now() };
  const message = `Asked again: ${why}.`;
  return await store.rebindCall({ ref, version, spec: { ...spec, definitionId, rebound }, message });
}
