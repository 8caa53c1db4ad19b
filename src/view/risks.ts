import type { PermissionRequest, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";

/** A kind of risk in words, with the commands, paths or addresses to which it applies. */
export interface RiskLine {
  kind: RiskKind;
  words: string;
  parts: readonly string[];
}

/** The risks of the permission requests of one call, the heaviest first. */
export function riskLines(requests: readonly Pick<PermissionRequest, "risks">[]): RiskLine[] {
  const found = new Map<RiskKind, Set<string>>();
  for (const { kind, parts } of requests.flatMap(({ risks }) => risks)) {
    const known = found.get(kind) ?? new Set();
    found.set(kind, known);
    for (const part of parts) known.add(part);
  }
  return [...found]
    .map(([kind, parts]) => ({ kind, words: riskWords.get(kind) ?? "has a risk", parts: [...parts] }))
    .sort((a, b) => a.kind - b.kind);
}
