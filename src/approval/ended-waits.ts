import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord, EndedWait } from "./ports.ts";

/**
 * Lists the waits of delegated calls that end with these settlements: no ask of the call stays open. No replica runs such a call
 * meanwhile, so none can measure its wait.
 */
export function endedWaits(asks: readonly AskRecord[], settled: readonly PermissionSettled[]): EndedWait[] {
  const times = new Map(settled.map(({ permissionId, time }) => [permissionId, time]));
  const delegated = asks.filter(({ part }) => part.executor === ToolExecutor.DELEGATED);
  return [...Map.groupBy(delegated, ({ part }) => part.id).values()].flatMap((ofCall) => {
    const [{ part } = {}] = ofCall;
    if (part === undefined || !part.permissionIds.every((id) => times.has(id))) return [];
    const began = Math.min(...ofCall.map(({ request }) => request.created));
    const ended = Math.max(...ofCall.map(({ request }) => times.get(request.id) ?? 0));
    return [{ part, ms: Math.max(ended - began, 0) }];
  });
}
