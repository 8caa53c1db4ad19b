import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  DecisionKind,
  type DecisionRecord,
  HostTrafficSchema,
  PermissionAction,
  type PermissionDecision,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type DecidedCall, decisionOn } from "../approval/decisions.ts";
import type { CallDecision } from "./decide.ts";
import type { CallRecord } from "./ports.ts";

/** Returns a call as audit records name it. */
export function decidedCall({ part, spec }: Pick<CallRecord, "part" | "spec">): DecidedCall {
  return { part, principal: spec.principal };
}

/** Builds the record that lets a call start or go on: by rules and grants, by approvals, or for the reason in `otherwise`. */
export function allowedRecord(
  call: Pick<CallRecord, "part" | "spec">,
  { verdict }: Pick<CallDecision, "verdict">,
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

/** Builds the record of what a call's commands sent to hosts and received. */
export function trafficRecord(
  call: Pick<CallRecord, "part" | "spec">,
  traffic: readonly MessageInitShape<typeof HostTrafficSchema>[],
): DecisionRecord {
  const about = { digest: call.spec.requestDigest, decisions: [] };
  const record = decisionOn(decidedCall(call), DecisionKind.CONNECTED, about);
  return { ...record, traffic: traffic.map((each) => create(HostTrafficSchema, each)) };
}

/** Builds the record of a denied call. */
export function deniedRecord(
  call: Pick<CallRecord, "part" | "spec">,
  decisions: readonly PermissionDecision[],
): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.DENIED, { digest: call.spec.requestDigest, decisions });
}
