import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import { endCall } from "./end-call.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord } from "./ports.ts";
import { failed } from "./state.ts";

/** Ends a delegated call whose time is over. Nobody here runs it, so it is neither claimed nor lost; until then it stays as it is. */
export async function recoverDelegated(engine: Engine, record: CallRecord): Promise<void> {
  const { asksOf, store } = engine;
  const { part, ref } = record;
  if (part.state.case === "running") return await endUnreported(engine, record);
  if (part.permissionIds.length > 0) return;
  if (collectableUntil(record, await asksOf(ref)) <= store.now()) await expireUncollected(engine, record);
}

/** Returns the time until which a request may collect the call's approval. */
export function collectableUntil({ spec }: CallRecord, asks: readonly AskRecord[]): number {
  const answered = asks.map(({ settled }) => settled?.time ?? 0);
  return Math.max(spec.accepted, ...answered) + (spec.delegated?.collectMs ?? 0);
}

/** Ends a call that was approved, or never decided, and that no request collected. Returns false if it has changed since it was read. */
export async function expireUncollected(engine: Engine, { ref, part, version }: CallRecord): Promise<boolean> {
  const error =
    "The call was not begun: its agent no longer waited for the answer. It was not run. Call the tool again if it is still needed.";
  const expired = failed(part, { reason: ToolErrorReason.EXPIRED, error }, engine.store.now());
  return (await endCall(engine, { ref, guard: { version }, part: expired })) !== undefined;
}

async function endUnreported(engine: Engine, record: CallRecord): Promise<void> {
  const { limits, store } = engine;
  const { ref, part, version } = record;
  const start = part.state.case === "running" ? (part.state.value.time?.start ?? 0) : 0;
  if (start + limits.reportMs > store.now() || (await hasLiveSubagent(engine, record))) return;
  const error = `The call was approved and begun, but its agent did not report a result within ${limits.reportMs} ms. It may have had none, some or all of its effects: look at what it did before you repeat it.`;
  const reason = ToolErrorReason.NOT_REPORTED;
  const ended = failed(part, { reason, error, effects: ToolEffects.UNKNOWN }, store.now());
  await endCall(engine, { ref, guard: { version }, part: ended });
}

/** Sessions of a tree that are read at once. */
const pageSize = 100;
/** Enough for the last event of a log. */
const lastEventBytes = 1;

/**
 * Checks if a call that started a subagent still works: a session below its own has an open call, or had an event within
 * `reportMs`. The agent reports such a call only when the subagent is done.
 */
async function hasLiveSubagent(engine: Engine, { ref, part }: CallRecord): Promise<boolean> {
  const { foreign, store } = engine;
  if (!foreign.tool(part.tool).permissions?.includes("task")) return false;
  for (let before: string | undefined; ; ) {
    const page = await store.listSessions({ root: ref.root, limit: pageSize, ...(before && { before }) });
    for (const session of page)
      if (session.parentSessionId === ref.sessionId && (await isLive(engine, session))) return true;
    if (page.length < pageSize) return false;
    before = page.at(-1)?.id;
  }
}

async function isLive({ limits, store }: Engine, { id: sessionId, lastSeq }: Session): Promise<boolean> {
  if ((await store.listCalls({ sessionId, open: true, limit: 1 })).length > 0) return true;
  const { events } = await store.readLog(sessionId, Number(lastSeq) - 1, lastEventBytes);
  return events.some(({ time }) => time + limits.reportMs > store.now());
}
