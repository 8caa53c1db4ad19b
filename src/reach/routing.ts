import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskConfigNames } from "../core/risk-words.ts";
import { wildcard } from "../policy/wildcard.ts";

/** An entry of `[[notify]]`. */
export interface NotifyRule {
  readonly permission: string;
  /** Kinds of risk of which the request has one; empty: any request. */
  readonly risk: readonly RiskName[];
  readonly agent: string;
  readonly workspace: string;
  readonly channels: readonly string[];
  readonly afterMs: number;
  /** True if its channels may approve what it sends to them. */
  readonly approve: boolean;
}

/** Kinds of risk by the names of the configuration. */
const riskNames: Readonly<Record<RiskName, RiskKind>> = {
  credentials: RiskKind.CREDENTIALS,
  downloaded_code: RiskKind.DOWNLOADED_CODE,
  deletes: RiskKind.DELETE,
  publishes: RiskKind.PUBLISH,
  outside: RiskKind.OUTSIDE,
  network: RiskKind.NETWORK,
  packages: RiskKind.PACKAGES,
};

type RiskName = (typeof riskConfigNames)[number];

/** Returns the name of a kind of risk. */
export function riskNameOf(kind: RiskKind): string {
  return riskConfigNames.find((name) => riskNames[name] === kind) ?? "unknown";
}

/** Maximum number of channels that one request is sent to. */
const maxChannels = 8;

/** Returns the channels that a request is sent to, and after how long: those of the first rule that matches; none otherwise. */
export function channelsFor(
  rules: readonly NotifyRule[],
  request: RoutedRequest,
  workspace: string,
): { channels: readonly string[]; afterMs: number } | undefined {
  const rule = ruleFor(rules, request, workspace);
  return rule && { channels: [...new Set(rule.channels)].slice(0, maxChannels), afterMs: rule.afterMs };
}

/** Checks if the rule that sends a request to a channel lets it approve the request. */
export function mayApproveAt(
  channel: string,
  rules: readonly NotifyRule[],
  request: RoutedRequest,
  workspace: string,
): boolean {
  const rule = ruleFor(rules, request, workspace);
  return rule?.approve === true && rule.channels.includes(channel);
}

type RoutedRequest = Pick<PermissionRequest, "permission" | "agent" | "risks">;

const ruleFor = (rules: readonly NotifyRule[], { permission, agent, risks }: RoutedRequest, workspace: string) =>
  rules.find(
    (each) =>
      wildcard(permission, each.permission) &&
      wildcard(agent, each.agent) &&
      wildcard(workspace, each.workspace) &&
      (each.risk.length === 0 || each.risk.some((name) => risks.some(({ kind }) => kind === riskNames[name]))),
  );
