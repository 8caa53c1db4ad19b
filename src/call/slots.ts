import type { ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import type { Engine, Slots } from "./engine.ts";
import type { CallRecord } from "./ports.ts";
import type { Running } from "./running.ts";

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
export function addWaiting(waiting: Map<string, CallRef[]>, ref: CallRef): boolean {
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
