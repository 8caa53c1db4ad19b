import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskConfigNames, riskKindOf } from "../core/risk-words.ts";
import { wildcard } from "../policy/wildcard.ts";

/** An entry of `[[notify]]`. */
export interface NotifyRule {
  readonly permission: string;
  /** Kinds of risk of which the request has one; empty: any request. */
  readonly risk: readonly RiskName[];
  readonly agent: string;
  readonly workspace: string;
  readonly channels: readonly string[];
  /** Whom channels that address persons reach; empty: everyone whom they can reach. */
  readonly to: NoticeAudience;
  readonly afterMs: number;
  /** True if its channels may approve what it sends to them. */
  readonly approve: boolean;
}

/** Persons, by name or by group. */
export interface NoticeAudience {
  readonly groups: readonly string[];
  readonly people: readonly { readonly issuer: string; readonly subject: string }[];
}

type RiskName = (typeof riskConfigNames)[number];

/** Returns the name of a kind of risk. */
export function riskNameOf(kind: RiskKind): string {
  return riskConfigNames.find((name) => riskKindOf(name) === kind) ?? "unknown";
}

/** Checks if the rule that sends a request to a channel lets it approve the request. */
export function mayApproveAt(
  channel: string,
  rules: readonly NotifyRule[],
  request: RoutedRequest,
  workspace: string,
): boolean {
  const rule = ruleFor(rules, request, workspace);
  const isEnough = (request.need?.method ?? AnswerMethod.UNSPECIFIED) <= AnswerMethod.CHANNEL;
  return isEnough && rule?.approve === true && rule.channels.includes(channel);
}

type RoutedRequest = Pick<PermissionRequest, "permission" | "agent" | "risks"> &
  Partial<Pick<PermissionRequest, "need">>;

/** Returns the first rule that matches a request; none: nobody is notified. */
export const ruleFor = (rules: readonly NotifyRule[], { permission, agent, risks }: RoutedRequest, workspace: string) =>
  rules.find(
    (each) =>
      wildcard(permission, each.permission) &&
      wildcard(agent, each.agent) &&
      wildcard(workspace, each.workspace) &&
      (each.risk.length === 0 || each.risk.some((name) => risks.some(({ kind }) => kind === riskKindOf(name)))),
  );
