import {
  DecisionKind,
  type DecisionRecord,
  PermissionAction,
  type PermissionDecision,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type DecidedCall, decisionOn } from "../approval/decisions.ts";
import type { Judged } from "./planning.ts";
import type { CallRecord } from "./ports.ts";

/** A call as its audit records name it. */
export function decidedCall({ part, spec }: Pick<CallRecord, "part" | "spec">): DecidedCall {
  return { part, principal: spec.principal };
}

/** Records that a call may start, or go on: by rules and grants, because people approved what it asked, or for what else is said. */
export function allowed(
  call: Pick<CallRecord, "part" | "spec">,
  { verdict }: Pick<Judged, "verdict">,
  approved: readonly PermissionRequest[] = [],
  otherwise = "a plugin allowed it",
): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.ALLOWED, {
    digest: approved[0]?.digest ?? call.spec.requestDigest,
    decisions: verdict.decisions.map((decision) =>
      decision.action === PermissionAction.ASK && !approved.some(({ permission }) => permission === decision.permission)
        ? { ...decision, reason: `${decision.reason}; ${otherwise}` }
        : decision,
    ),
    permissionIds: approved.map(({ id }) => id),
  });
}

/** Records that a call was denied. */
export function deniedBy(
  call: Pick<CallRecord, "part" | "spec">,
  decisions: readonly PermissionDecision[],
): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.DENIED, { digest: call.spec.requestDigest, decisions });
}
