import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** Kinds of risk as what a command does, for the texts of offers and for clients. */
export const riskWords: ReadonlyMap<number, string> = new Map([
  [RiskKind.CREDENTIALS, "touches credentials"],
  [RiskKind.DOWNLOADED_CODE, "runs downloaded code"],
  [RiskKind.DELETE, "deletes"],
  [RiskKind.PUBLISH, "pushes or publishes"],
  [RiskKind.OUTSIDE, "leaves the workspace"],
  [RiskKind.NETWORK, "uses the network"],
  [RiskKind.PACKAGES, "installs packages by name"],
]);

/** Kinds of risk as the configuration and channels name them. */
export const riskConfigNames = [
  "credentials",
  "downloaded_code",
  "deletes",
  "publishes",
  "outside",
  "network",
  "packages",
] as const;
