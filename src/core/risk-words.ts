import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** Kinds of risk as what a command does, for the texts of offers and for clients. */
export const riskWords: ReadonlyMap<RiskKind, string> = new Map([
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

/** Returns the kind of risk that the configuration names so; both lists have the same order. */
export const riskKindOf = (name: (typeof riskConfigNames)[number]): RiskKind =>
  [...riskWords.keys()][riskConfigNames.indexOf(name)] ?? RiskKind.UNSPECIFIED;
