import type { PermissionRequest, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";

type WithRisks = Pick<PermissionRequest, "risks">;

/** Commands, paths or addresses with the same risks. */
export interface RiskLine {
  /** The heaviest risk. */
  kind: RiskKind;
  /** All of their risks in words, the heaviest first. */
  words: string;
  parts: readonly string[];
}

/** The risks of the permission requests of one call, the heaviest first; each command, path or address stands in one line. */
export function riskLines(requests: readonly WithRisks[]): RiskLine[] {
  const kinds = new Map<string, Set<RiskKind>>();
  for (const { kind, parts } of byWeight(requests))
    for (const part of parts) kinds.set(part, (kinds.get(part) ?? new Set()).add(kind));
  const alike = Map.groupBy(kinds, ([, found]) => [...found].join(" "));
  return [...alike.values()].flatMap((same) => {
    const [kind, ...others] = same[0]?.[1] ?? [];
    if (kind === undefined) return [];
    const parts = same.map(([part]) => part);
    // A file is not repeated beside the command that names it.
    const isNamed = (part: string) => parts.some((other) => other !== part && ` ${other} `.includes(` ${part} `));
    const words = [kind, ...others].map(wordsOf).join(", ");
    return { kind, words, parts: parts.filter((part) => !isNamed(part)) };
  });
}

/** The kinds of risk of the permission requests of one call in words, the heaviest first. */
export function riskKinds(requests: readonly WithRisks[]): { kind: RiskKind; words: string }[] {
  return [...new Set(byWeight(requests).map(({ kind }) => kind))].map((kind) => ({ kind, words: wordsOf(kind) }));
}

const byWeight = (requests: readonly WithRisks[]) =>
  requests.flatMap(({ risks }) => risks).toSorted((a, b) => a.kind - b.kind);

const wordsOf = (kind: RiskKind) => riskWords.get(kind) ?? "has a risk";
