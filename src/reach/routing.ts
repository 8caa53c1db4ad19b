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
  { permission, agent, risks }: Pick<PermissionRequest, "permission" | "agent" | "risks">,
  workspace: string,
): { channels: readonly string[]; afterMs: number } | undefined {
  const rule = rules.find(
    (each) =>
      wildcard(permission, each.permission) &&
      wildcard(agent, each.agent) &&
      wildcard(workspace, each.workspace) &&
      (each.risk.length === 0 || each.risk.some((name) => risks.some(({ kind }) => kind === riskNames[name]))),
  );
  return rule && { channels: [...new Set(rule.channels)].slice(0, maxChannels), afterMs: rule.afterMs };
}
