import { create } from "@bufbuild/protobuf";
import { type GrantMatch, GrantScope, type Offer, OfferSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { isVisible } from "./display.ts";
import { coverableWords } from "./shell/prefix.ts";
import { wildcard } from "./wildcard.ts";

const maxPatternBytes = 4_096;

/** Whether a grant covers a pattern. Only `wildcard` gives characters a meaning. */
export function covers(match: GrantMatch | undefined, pattern: string): boolean {
  switch (match?.match.case) {
    case "exact":
      return match.match.value === pattern;
    case "prefix":
      return beginsWith(coverableWords(pattern) ?? [], match.match.value.words);
    case "wildcard":
      return wildcard(pattern, match.match.value);
    default:
      return false;
  }
}

/** What "always" may save for an ask, narrowest first: exactly its one pattern. Nothing where that could not be shown as it is. */
export function offersFor(ask: {
  permission: string;
  patterns: readonly string[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  binding: string;
}): Offer[] {
  const [pattern, ...others] = ask.patterns;
  if (pattern === undefined || others.length > 0 || !isShowable(pattern)) return [];
  const what = `Allow ${ask.permission} ${JSON.stringify(pattern)}`;
  const scopes = [
    { scope: GrantScope.SESSION, text: `${what} in this session and its children` },
    { scope: GrantScope.AGENT, text: `${what} for agent ${ask.agent} in workspace ${ask.workspace}, until revoked` },
    { scope: GrantScope.PROJECT, text: `${what} for every session in workspace ${ask.workspace}, until revoked` },
  ];
  return scopes.map(({ scope, text }, i) =>
    create(OfferSchema, {
      id: `o${i + 1}`,
      text,
      scope,
      match: { match: { case: "exact", value: pattern } },
      binding: ask.binding,
    }),
  );
}

/** What no prefix may cover has no words here; neither does an empty prefix cover anything. */
function beginsWith(words: readonly string[], prefix: readonly string[]): boolean {
  return prefix.length > 0 && prefix.every((word, i) => word === words[i]);
}

/** Whether a person sees all of a text: nothing too long, invisible, or reordering what stands around it. */
function isShowable(text: string): boolean {
  return text !== "" && Buffer.byteLength(text) <= maxPatternBytes && isVisible(text) && !/[\t\n]/.test(text);
}
