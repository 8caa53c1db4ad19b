import type { ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord } from "./ports.ts";

/** Ends this replica's lease on a pending call, if it still holds it: the call waits without an owner, for what `progress` says. */
export async function releaseCall(
  engine: Engine,
  { ref }: Pick<CallRecord, "ref">,
  progress?: ToolProgress,
): Promise<void> {
  const { limits, replicaId, store } = engine;
  for (;;) {
    const record = await store.getCall(ref.sessionId, ref.callId);
    if (record?.owner !== replicaId || record.part.state.case !== "pending") return;
    const { epoch, owner, part, version } = record;
    const dueMs = part.permissionIds.length > 0 ? limits.askMs : (record.spec.delegated?.collectMs ?? 0);
    const step = { fence: { ref, owner, epoch }, version, asks: [], withdraw: [], message: "", dueMs };
    const reported = progress && part.permissionIds.length === 0 ? { progress } : {};
    if (await store.openAsks({ ...step, ...reported, maxOpenAsks: Number.MAX_SAFE_INTEGER })) return;
  }
}
