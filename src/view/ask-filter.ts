import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { requesterWords } from "./requester.ts";
import { riskLines } from "./risks.ts";

/** The words of an inbox's filter, in lower case; the key is `session`, `agent`, `tool` or `risk`, or empty for any text. */
type FilterTerm = readonly [key: string, value: string];

/**
 * Keeps the calls that have every word of the filter, and groups equal ones, in the order of the first of each group.
 * `agent:`, `session:`, `tool:` or `risk:` before a word limits it to that field; quotation marks keep words together.
 */
export function filterCalls<T>(
  calls: readonly T[],
  filter: string,
  of: { requests(call: T): readonly PermissionRequest[]; isOpen(call: T): boolean; nameOf(sessionId: string): string },
): T[][] {
  const terms = termsOf(filter);
  const isFound = (call: T) => {
    const texts = terms.length === 0 ? undefined : textsOf(of.requests(call), of.nameOf);
    return texts === undefined || terms.every(([key, value]) => texts[key]?.includes(value));
  };
  // An outcome is shown for itself.
  const keyOf = (call: T): unknown => (of.isOpen(call) ? equalityKey(of.requests(call)) : call);
  return [...Map.groupBy(calls.filter(isFound), keyOf).values()];
}

function termsOf(filter: string): FilterTerm[] {
  const found = filter.toLowerCase().matchAll(/(?:(session|agent|tool|risk):)?(?:"([^"]*)"?|(\S*))/g);
  return [...found].map(([, key = "", quoted, word = ""]) => [key, quoted ?? word]);
}

function textsOf(requests: readonly PermissionRequest[], nameOf: (id: string) => string): Record<string, string> {
  const sessions = new Set(requests.flatMap(({ sessionId, ancestry }) => [sessionId, ...ancestry]));
  const fields = {
    session: [...sessions].flatMap((id) => [id, nameOf(id)]),
    agent: requests.flatMap((request) => [request.agent, requesterWords(request, (text) => text)]),
    tool: requests.flatMap(({ permission, view }) => [view?.tool ?? "", permission]),
    risk: riskLines(requests).map(({ words }) => words),
  };
  const rest = requests.flatMap(({ patterns, display, preview, view }) => [
    ...[...patterns, ...display, preview?.command ?? "", view?.title ?? ""],
    ...(view?.input ?? []).map(({ text }) => text),
  ]);
  const texts = Object.entries({ ...fields, "": [...Object.values(fields).flat(), ...rest] });
  return Object.fromEntries(texts.map(([key, values]) => [key, values.join("\n").toLowerCase()]));
}

/** Equal for calls of one agent that ask the same for the same input and files; a value of which only a part is here has its hash. */
function equalityKey(requests: readonly PermissionRequest[]): string {
  const asked = requests.map(({ id, agent, permission, patterns, requester, view }) => [
    ...[agent, requesterWords({ agent, requester }, (text) => text), permission, patterns, view?.tool ?? id],
    view?.input.map(({ path, text, sha256 }) => [path, text, sha256]),
    view?.files.map(({ path, sha256 }) => [path, sha256]),
  ]);
  return JSON.stringify(asked);
}
