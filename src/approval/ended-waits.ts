import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { AskRecord, EndedWait } from "./ports.ts";

/**
 * Lists the waits of calls that end with these settlements: no ask of the call stays open. A call waits without an owner, so no
 * replica can measure its wait.
 */
export function endedWaits(asks: readonly AskRecord[], settled: readonly PermissionSettled[]): EndedWait[] {
  const times = new Map(settled.map(({ permissionId, time }) => [permissionId, time]));
  return [...Map.groupBy(asks, ({ part }) => part.id).values()].flatMap((ofCall) => {
    const [{ part } = {}] = ofCall;
    if (part === undefined || !part.permissionIds.every((id) => times.has(id))) return [];
    const began = Math.min(...ofCall.map(({ request }) => request.created));
    const ended = Math.max(...ofCall.map(({ request }) => times.get(request.id) ?? 0));
    return [{ part, ms: Math.max(ended - began, 0) }];
  });
}
