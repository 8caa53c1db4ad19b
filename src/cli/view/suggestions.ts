import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";

/** A request with the answer that a person gave to it. */
export interface PastRequest {
  request: PermissionRequest;
  /** Absent if no person answered it. */
  isApproved?: boolean;
  /** The time of the answer, otherwise of the request, in ms since the epoch. */
  time: number;
}

/** A rule that would have answered what people approved again and again. */
export interface Suggestion {
  agent: string;
  permission: string;
  pattern: string;
  /** One of the patterns that were approved. */
  example: string;
  approvals: number;
  days: number;
}

const minApprovals = 5;
const minDays = 2;

/**
 * Finds what people approved at least five times on at least two days and never rejected. Requests with a risk or a warning, and those
 * that no grant may answer, suggest nothing.
 */
export function suggestionsOf(past: readonly PastRequest[]): Suggestion[] {
  const answered = past.filter(({ isApproved }) => isApproved !== undefined);
  const groups = Map.groupBy(answered, ({ request }) =>
    JSON.stringify([request.agent, request.permission, patternOf(request)]),
  );
  return [...groups.values()]
    .flatMap((group): Suggestion[] => {
      const [first] = group;
      const pattern = first && patternOf(first.request);
      const days = new Set(group.map(({ time }) => Math.floor(time / dayMs))).size;
      const isClear = group.every(({ request, isApproved }) => isApproved && isHarmless(request));
      if (!pattern || !isClear || group.length < minApprovals || days < minDays) return [];
      const { agent, permission, patterns } = first.request;
      return [{ agent, permission, pattern, example: patterns[0] ?? "", approvals: group.length, days }];
    })
    .toSorted((one, other) => other.approvals - one.approvals);
}

const dayMs = 86_400_000;

/** A file whose reading is restricted, a directory outside and a repetition are asked for because of what they are. */
const always: ReadonlySet<string> = new Set(["read", "external_directory", "doom_loop", "question"]);

function isHarmless({ permission, risks, warnings, offers }: PermissionRequest): boolean {
  return risks.length === 0 && warnings.length === 0 && offers.length > 0 && !always.has(permission);
}

/** Returns the pattern of a rule for a request: the first words of its command, as far as no option is bound, or the text itself. */
function patternOf({ patterns, offers }: PermissionRequest): string | undefined {
  const [text = "", ...others] = patterns;
  if (others.length > 0) return undefined;
  const [prefix] = offers.flatMap(({ match }) => (match?.match.case === "prefix" ? match.match.value : []));
  const isFree = prefix && prefix.options.length === 0 && prefix.riskKinds.length === 0;
  const found = isFree ? `${prefix.words.join(" ")} *` : text;
  const isPlain = /^[\x20-\x7e]{1,200}$/.test(text) && !/[*?]/.test(isFree ? prefix.words.join("") : text);
  return isPlain && !/^\d+$/.test(found) ? found : undefined;
}
