import type { ApprovalNeed } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";

/**
 * Returns the need by which answers are judged now: the one of the request, with the groups of the steps that were taken. A step adds
 * groups to one requirement, and changes nothing else.
 */
export function currentNeed({
  need,
  escalations,
}: Pick<PermissionRequest, "need" | "escalations">): ApprovalNeed | undefined {
  const taken = escalations.filter((each) => each.taken > 0);
  if (need === undefined || taken.length === 0) return need;
  const all = need.all.map((each, index) => {
    const added = taken.flatMap(({ requirement, to }) => (requirement === index ? to : []));
    // Without groups any approver counts.
    return each.from.length === 0 ? each : { ...each, from: [...new Set([...each.from, ...added])] };
  });
  return { ...need, all };
}

/** Returns the time of the next step that was not taken; undefined without one. */
export function nextEscalation({ escalations }: Pick<PermissionRequest, "escalations">): number | undefined {
  return escalations.find(({ taken }) => taken === 0)?.at;
}
