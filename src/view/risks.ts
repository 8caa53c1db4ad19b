import { type PermissionRequest, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";
import { visibleLine } from "../core/visible.ts";
import { viewLines } from "./view-lines.ts";

type WithRisks = Pick<PermissionRequest, "risks">;

/** Commands, paths or addresses with the same risks. */
export interface RiskLine {
  /** The heaviest risk. */
  kind: RiskKind;
  /** The file that runs, or the value of the input, which holds the parts; empty for the call itself. */
  owner: string;
  /** All of their risks in words, the heaviest first, as a predicate of the owner. */
  words: string;
  parts: readonly string[];
}

/** The risks of the permission requests of one call, the heaviest first; each command, path or address stands in one line. */
export function riskLines(requests: readonly (WithRisks & Parameters<typeof viewLines>[0])[]): RiskLine[] {
  const owners = requests.flatMap(viewLines).flatMap(({ kind, name, path }) => {
    if (kind === "input") return { name, isValue: true };
    return path === undefined ? [] : { name: visibleLine(path), isValue: false };
  });
  const kinds = new Map<string, Set<RiskKind>>();
  for (const { kind, parts } of byWeight(requests))
    for (const part of parts) kinds.set(part, (kinds.get(part) ?? new Set()).add(kind));
  const found = [...kinds].map(([part, kinds]) => {
    const { name, isValue } = owners.find(({ name }) => part.startsWith(`${name}: `)) ?? { name: "", isValue: false };
    const words = [...kinds].map((kind) => (isValue && valueWords.get(kind)) || wordsOf(kind)).join(", ");
    return { kind: [...kinds][0], owner: name, words, part: name === "" ? part : part.slice(name.length + 2) };
  });
  const alike = Map.groupBy(found, ({ owner, words }) => `${owner} ${words}`);
  return [...alike.values()].flatMap(([first, ...others]) => {
    if (first?.kind === undefined) return [];
    const parts = [first, ...others].map(({ part }) => part);
    // A file is not repeated beside the command that names it.
    const isNamed = (part: string) => parts.some((other) => other !== part && ` ${other} `.includes(` ${part} `));
    const { kind, owner, words } = first;
    return { kind, owner, words: owner === "" ? words : `${words}:`, parts: parts.filter((part) => !isNamed(part)) };
  });
}

/** The risks of a text that nothing runs. */
const valueWords: ReadonlyMap<RiskKind, string> = new Map([
  [RiskKind.CREDENTIALS, "holds or names credentials"],
  [RiskKind.NETWORK, "names an address"],
]);

/** The kinds of risk of the permission requests of one call in words, the heaviest first. */
export function riskKinds(requests: readonly WithRisks[]): { kind: RiskKind; words: string }[] {
  return [...new Set(byWeight(requests).map(({ kind }) => kind))].map((kind) => ({ kind, words: wordsOf(kind) }));
}

const byWeight = (requests: readonly WithRisks[]) =>
  requests.flatMap(({ risks }) => risks).toSorted((a, b) => a.kind - b.kind);

const wordsOf = (kind: RiskKind) => riskWords.get(kind) ?? "has a risk";
