import { PermissionAction, PermissionLayer, PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { maxMatchSteps } from "./match-steps.ts";
import type { Opinion } from "./opinion.ts";

/** No rule matches. */
export const noMatch: Opinion = {
  action: PermissionAction.ASK,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule matches: ask",
  code: PermissionReason.NO_RULE,
};

/** A call does not name what it touches. */
export const noPattern: Opinion = {
  ...noMatch,
  reason: "nothing says what would be touched: ask",
  code: PermissionReason.NO_PATTERN,
};

/** No rule restricts an ask that can only be restricted. */
export const notRestricted: Opinion = {
  action: PermissionAction.ALLOW,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule asks or denies it",
  code: PermissionReason.NO_RULE,
};

/** The text and the rules are too large to match. */
export const tooLarge: Opinion = {
  action: PermissionAction.ASK,
  layer: PermissionLayer.ENGINE,
  reason: `engine: matching the text with all rules takes more than ${maxMatchSteps} steps: always asked`,
  code: PermissionReason.ALWAYS_ASKED,
};

/** The engine protects what would be touched. */
export function protectedBy(reason: string): Opinion {
  return {
    action: PermissionAction.DENY,
    layer: PermissionLayer.ENGINE,
    reason: `engine: ${reason}`,
    code: PermissionReason.PROTECTED,
  };
}

/** A policy file cannot be read. */
export function unreadableRules(problem: string): Opinion {
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.WORKSPACE,
    reason: `${problem}: everything asks`,
    code: PermissionReason.BROKEN_POLICY,
  };
}
