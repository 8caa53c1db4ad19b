import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";

/** Makes the decision on everything in a workspace where a plugin is not loaded that may guard calls. */
export function guardDecision(permission: string, pattern: string, problem: string): PermissionDecision {
  return create(PermissionDecisionSchema, {
    permission,
    pattern,
    action: PermissionAction.DENY,
    layer: PermissionLayer.ENGINE,
    reason: `engine: ${problem}`,
    reasonCode: PermissionReason.GUARD_NOT_LOADED,
  });
}
