import { create } from "@bufbuild/protobuf";
import { type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import { refreshCall } from "./call-record.ts";
import { CallEnd, CallGone, endAsRead } from "./ends.ts";
import type { Engine, Slots } from "./engine.ts";
import type { CallRecord, QueuedCall } from "./ports.ts";
import type { Running } from "./running.ts";
import { isTerminal } from "./state.ts";

/** Creates free slots. */
export function createSlots(): Slots {
  return { takenCount: 0, waiting: new Map(), isClaiming: false };
}

/** True if this replica may run one more body. */
export function hasFreeSlot({ limits, slots }: Pick<Engine, "limits" | "slots">): boolean {
  return slots.takenCount < limits.replicaRunning;
}

/**
 * True for a call whose body counts. Built-in tools that only read are short, and calls that start a subagent mostly wait for the
 * calls of that, which need slots themselves. Bodies of workers need capacity of theirs instead.
 */
export function needsSlot({ readOnlyTools }: Engine, tool: Tool, plan?: Pick<Plan, "childSession">): boolean {
  return !readOnlyTools.has(tool) && !tool.remote && (plan?.childSession ?? "") === "";
}

/** Takes a slot for a call. A call of a tree whose calls wait for one is not served before those; `isNext` for the first of them. */
export function takeSlot(engine: Engine, { root }: Pick<CallRef, "root">, isNext = false): boolean {
  if (!hasFreeSlot(engine) || (!isNext && engine.slots.waiting.has(root))) return false;
  engine.slots.takenCount += 1;
  return true;
}

/** Frees a slot; `whenFree` of the engine then claims a call that waits for one. */
export function freeSlot(engine: Engine): void {
  engine.slots.takenCount -= 1;
  if (engine.slots.waiting.size > 0) engine.whenFree();
}

/**
 * Runs work for which a body only waits: its slot is free meanwhile, and taken again afterwards, even if there is none. A run that
 * ended meanwhile takes none, since nothing would free it.
 */
export async function outsideSlot<T>(
  engine: Engine,
  call: Pick<Running, "hasSlot" | "isOver">,
  work: () => Promise<T>,
): Promise<T> {
  if (!call.hasSlot) return await work();
  call.hasSlot = false;
  freeSlot(engine);
  try {
    return await work();
  } finally {
    if (!call.isOver) {
      engine.slots.takenCount += 1;
      call.hasSlot = true;
    }
  }
}

/** Remembers a call that waits for a slot, or for its turn. */
export function waitForSlot(engine: Engine, ref: CallRef): void {
  addWaiting(engine.slots.waiting, ref);
  if (hasFreeSlot(engine)) engine.whenFree();
}

/** Adds a call to those that wait, by root session. Returns false if it waits already. */
function addWaiting(waiting: Map<string, CallRef[]>, ref: CallRef): boolean {
  const calls = waiting.get(ref.root) ?? [];
  waiting.set(ref.root, calls);
  if (calls.some(({ sessionId, callId }) => sessionId === ref.sessionId && callId === ref.callId)) return false;
  calls.push(ref);
  return true;
}

/** Removes the next call from the queue: the trees take turns. */
export function nextWaiting(waiting: Map<string, CallRef[]>): CallRef | undefined {
  const [root] = waiting.keys();
  return root === undefined ? undefined : takeWaiting(waiting, root, waiting.get(root)?.[0]);
}

/** Removes a call of a tree from the queue; the other trees are served before its next one. */
export function takeWaiting(
  waiting: Map<string, CallRef[]>,
  root: string,
  taken: CallRef | undefined,
): CallRef | undefined {
  const others = (waiting.get(root) ?? []).filter((ref) => ref !== taken);
  waiting.delete(root);
  if (others.length > 0) waiting.set(root, others);
  return taken;
}

/** Ends this replica's lease on a pending call, if it still holds it: the call waits without an owner, for what `progress` says. */
export async function releaseCall(
  engine: Engine,
  { ref }: Pick<CallRecord, "ref">,
  progress?: ToolProgress,
): Promise<void> {
  const { asksOf, limits, replicaId, store } = engine;
  for (;;) {
    const record = await store.getCall(ref.sessionId, ref.callId);
    if (record?.owner !== replicaId || record.part.state.case !== "pending") return;
    const { epoch, owner, part, version } = record;
    const waits = part.permissionIds.length > 0;
    const ends = waits ? (await asksOf(ref)).flatMap((ask) => (ask.settled ? [] : ask.request.expires)) : [];
    const askedMs = Math.max(limits.askMs, ...ends.map((end) => end - store.now()));
    const dueMs = waits ? askedMs : (record.spec.delegated?.collectMs ?? 0);
    const step = { fence: { ref, owner, epoch }, version, asks: [], withdraw: [], message: "", dueMs };
    const reported = progress && !waits ? { progress } : {};
    if (await store.openAsks({ ...step, ...reported, maxOpenAsks: Number.MAX_SAFE_INTEGER })) return;
  }
}

/** Leaves the call to the replica whose worker has capacity first; ends it if it may not wait. */
export async function leaveForWorker(
  engine: Engine,
  call: Running,
  tool: Tool,
  { waitsForWorker: isUnplanned }: Pick<Plan, "waitsForWorker">,
): Promise<never> {
  const { gate } = call;
  const wait = waitOf(engine, call.record, tool);
  // The gate of an atomic batch is in memory, so its calls cannot wait without an owner.
  if (!wait || gate) throw new CallEnd(ToolErrorReason.UNAVAILABLE, await noWorkerText(tool, call.record.ref));
  const release = () => {
    const at = { fence: call.fence, version: call.record.version };
    const nothing = { asks: [], withdraw: [], message: "", maxOpenAsks: Number.MAX_SAFE_INTEGER };
    return engine.store.openAsks({ ...at, ...nothing, dueMs: 0, ...wait });
  };
  while (!(await release())) await refreshCall(engine, call);
  if (isUnplanned) throw new CallGone();
  call.queuedFor = wait.queued.definitionId;
  throw new CallGone();
}

/** Returns the wait of a call for a worker, and the event that says so; undefined if it may not wait. */
export function waitOf(
  { store }: Engine,
  { ref: { callId }, spec }: Pick<CallRecord, "ref" | "spec">,
  { definition: { definitionId }, name, remote }: Tool,
): { queued: QueuedCall; progress: ToolProgress } | undefined {
  const waitMs = spec.queueMs ?? remote?.queueMs ?? 0;
  if (waitMs === 0) return undefined;
  const progress = create(ToolProgressSchema, { callId, title: `Waiting for a worker that runs ${name}` });
  return { queued: { definitionId, until: store.now() + waitMs }, progress };
}

const noWorkerText = async ({ name, remote }: Tool, ref: CallRef) =>
  `The tool "${name}" was not run: ${(await remote?.unavailable(ref)) ?? "no worker that runs it is connected"}.`;

/** Time for which a call waits at least after its body was not entered: another process or replica may take it. */
const minAgainMs = 5_000;

/** Returns the wait of a call whose body was not entered: it goes on with the wait that it had before its start, if there was one. */
export function waitAgain(
  { store }: Engine,
  { queuedUntil, spec }: Pick<CallRecord, "queuedUntil" | "spec">,
  tool: Tool | undefined,
): QueuedCall {
  const waitMs = spec.queueMs ?? tool?.remote?.queueMs ?? 0;
  return {
    definitionId: spec.definitionId,
    until: queuedUntil ?? store.now() + Math.max(waitMs, minAgainMs),
  };
}

/**
 * Remembers a call that waits for a worker, and claims it if one has capacity by now. Recovery does so once a second for a call that no
 * worker has planned: a worker that does not plan it may have capacity, and would get it again at once.
 */
export function waitForWorker(engine: Engine, definitionId: string, ref: CallRef): void {
  const waiting = engine.workerQueue.get(definitionId) ?? new Map<string, CallRef[]>();
  engine.workerQueue.set(definitionId, waiting);
  if (addWaiting(waiting, ref)) engine.whenWorkerFree();
}

/** True for a call whose body its worker did not enter, and which waits for another one. */
export function isGivenBack({ owner, queuedUntil }: Pick<CallRecord, "owner" | "queuedUntil">): boolean {
  return owner === "" && queuedUntil !== undefined;
}

/** Cancels a call that waits, unless it has changed since it was read; returns whether it did. */
export async function endCancelled(engine: Engine, record: CallRecord, error: string): Promise<boolean> {
  return await endAsRead(engine, record, { reason: ToolErrorReason.CANCELLED, error, effects: effectsOf(record) });
}

/** A body that was entered before, by a worker that is lost, may have had effects. */
const effectsOf = ({ attempts }: CallRecord) => (attempts > 0 ? ToolEffects.UNKNOWN : ToolEffects.NONE);

/** Offers a call that was given back to the workers of all replicas; one that was to be cancelled ends. */
export async function offerAgain(engine: Engine, ref: CallRef, definitionId: string): Promise<void> {
  const { store } = engine;
  const record = await store.getCall(ref.sessionId, ref.callId);
  if (record?.cancel !== undefined && isGivenBack(record))
    return void (await endCancelled(engine, record, record.cancel));
  waitForWorker(engine, definitionId, ref);
  await store.announceUnclaimed([ref]);
}

/** Returns the tool of a definition: the one that serves its name now, or one that workers served before. */
export function findDefinition(
  { registry, remoteTools }: Pick<Engine, "registry" | "remoteTools">,
  { part, spec }: Pick<CallRecord, "part" | "spec">,
  workspace: string,
): Tool | undefined {
  const tool = registry.get(part.tool, workspace);
  return tool?.definition.definitionId === spec.definitionId
    ? tool
    : (remoteTools?.find(spec.definitionId, workspace) ?? tool);
}

/** Reserves capacity for the body of a call, unless it has some. Returns false if no worker of this replica has any. */
export function reserveWorker(call: Running, { remote }: Tool): boolean {
  call.reservation ??= remote?.reserve(call.record.ref);
  return call.reservation !== undefined;
}

/** Returns the number of calls that wait for a worker with a definition, at any replica, as of the last recoveries. */
export function countQueued({ queuedCounts: { now, before } }: Engine, definitionId: string): number {
  return Math.max(now.get(definitionId) ?? 0, before.get(definitionId) ?? 0);
}

/** Ends a call that no worker took in time; otherwise remembers it. */
export async function recoverQueued(engine: Engine, ref: CallRef, { definitionId, until }: QueuedCall): Promise<void> {
  const { store } = engine;
  if (store.now() < until) return waitForWorker(engine, definitionId, ref);
  const record = await store.getCall(ref.sessionId, ref.callId);
  if (record?.queuedUntil === undefined || record.owner !== "" || isTerminal(record.part)) return;
  const opened = await engine.sessions.load(ref.sessionId).catch(() => undefined);
  const workspace = opened && workspaceRoot(opened.workspace.name);
  const serving = workspace === undefined ? undefined : engine.registry.get(record.part.tool, workspace);
  const end = await endOfWait(record, serving, workspace && findDefinition(engine, record, workspace));
  await endAsRead(engine, record, { ...end, effects: effectsOf(record) });
}

async function endOfWait(
  { part: { tool: name }, ref, spec }: CallRecord,
  serving: Tool | undefined,
  own: Tool | "" | undefined,
) {
  if (serving && serving.definition.definitionId !== spec.definitionId) {
    const error = `The tool "${name}" has changed since it was offered, and no worker that has it as it was took the call. List the tools again and repeat the call as it is now.`;
    return { reason: ToolErrorReason.STALE_TOOL, error };
  }
  const why = own
    ? await noWorkerText(own, ref)
    : `The tool "${name}" was not run: no worker that runs it is connected.`;
  return { reason: ToolErrorReason.UNAVAILABLE, error: why };
}
