import { setImmediate as turn } from "node:timers/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type AuditEntry,
  DecisionKind,
  PermissionAction,
  PermissionLayer,
  PermissionOutcome,
  PermissionRuleSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  ExplainPermissionRequestSchema,
  type GetAttentionResponseSchema,
  type SuggestedRuleSchema,
  type SuggestionMissSchema,
  type SuggestRulesRequest,
  type SuggestRulesResponseSchema,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskStore } from "../approval/ports.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { visibleLine } from "../core/visible.ts";
import { countAttention } from "./attention.ts";
import { type AuditSource, auditPages } from "./audit-pages.ts";
import { createTimeBudget } from "./line-analysis.ts";
import type { Planner } from "./planner.ts";

interface RuleReviewParts extends AuditSource, Pick<AskStore, "findAsk"> {
  planner: Pick<Planner, "explain" | "rules">;
  /** Ms since the epoch, by the clock of the store. */
  now(): number;
  /** Ms, monotonic. */
  clock?: () => number;
}

type Suggestions = MessageInitShape<typeof SuggestRulesResponseSchema>;

/** Reads the past, so that people can review the rules. */
export type RuleReview = ReturnType<typeof createRuleReview>;

const maxMs = 10_000;
const budgetMs = 30_000;
const windowMs = 60_000;
const cachedMs = 60_000;
const maxRequests = 5_000;
const maxRecords = 100_000;
const readAtOnce = 50;
const dayMs = 86_400_000;

/** Creates the review of a replica. It runs one reading at a time, in short turns, and caches the results. */
export function createRuleReview(parts: RuleReviewParts) {
  const { clock = () => performance.now(), now } = parts;
  const budget = createTimeBudget(windowMs, clock);
  const results = new Map<string, { until: number; result: Promise<unknown> }>();
  let last: Promise<unknown> = Promise.resolve();

  /** Returns the result of the same work within the last minute; otherwise starts it when other work has ended. */
  function cached<T>(name: string, principal: Principal, work: (isLate: () => boolean) => Promise<T>): Promise<T> {
    for (const [key, { until }] of results) if (until <= clock()) results.delete(key);
    const known = results.get(name);
    if (known) return known.result as Promise<T>;
    if (budget.usedBy(principal.id) >= budgetMs) throw overBudget(principal.id);
    const result = last.then(async () => {
      const began = clock();
      try {
        return await work(() => clock() > began + maxMs);
      } finally {
        budget.spend(principal.id, clock() - began);
      }
    });
    last = result.catch(() => results.delete(name));
    results.set(name, { until: clock() + cachedMs, result });
    return result;
  }

  const fromOf = (days: number) => now() - days * dayMs;

  return {
    /** Suggests rules; for one request the rule that would have answered it. */
    async suggest(
      principal: Principal,
      days: SuggestRulesRequest["days"],
      request: PermissionRequest | undefined,
    ): Promise<Suggestions> {
      const wanted = request && pastRequestOf(request, { time: request.created });
      if (wanted && (!wanted.isHarmless || wanted.pattern === undefined)) return {};
      const name = nameOf("suggest", principal, days);
      const found = await cached(name, principal, (isLate) => suggest(parts, principal, fromOf(days), isLate));
      if (!wanted) return found;
      const rules = found.rules.filter((rule) => ruleKeyOf(rule) === ruleKeyOf(wanted));
      return { ...found, misses: [], rules, toml: tomlOf(rules) };
    },
    /** Counts the requests to people. */
    attention: (principal: Principal, days: number): Promise<MessageInitShape<typeof GetAttentionResponseSchema>> =>
      cached(nameOf("attention", principal, days), principal, async (isLate) => {
        const reading = { isCut: false };
        const entries = entriesOf(parts, principal, () => isLate(), reading);
        const counts = await countAttention(entries, fromOf(days));
        return { ...counts, incomplete: reading.isCut };
      }),
  };
}

/** Names a result that is the same for all who read all sessions and may act as the same agents in the same workspaces. */
const nameOf = (what: string, { agents, workspaces }: Principal, days: number) =>
  JSON.stringify([what, days, agents, workspaces]);

const overBudget = (principal: string) =>
  new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `${principal} used ${budgetMs / 1_000} s of reading the past within a minute; wait`,
    { limit: "review_ms" },
  );

/** Reads entries until the limits, and lets other work go on after each page. */
async function* entriesOf(
  source: AuditSource,
  principal: Principal,
  isLate: () => boolean,
  reading: { isCut: boolean },
): AsyncGenerator<AuditEntry> {
  let left = maxRecords;
  for await (const page of auditPages(source, principal)) {
    yield* page;
    left -= page.length;
    await turn();
    if (left > 0 && !isLate()) continue;
    reading.isCut = true;
    return;
  }
}

async function suggest(parts: RuleReviewParts, principal: Principal, from: number, isLate: () => boolean) {
  const reading = { isCut: false };
  const answers = new Map<string, Pick<PastRequest, "isApproved" | "time">>();
  for await (const { record, time } of entriesOf(parts, principal, isLate, reading)) {
    if (!record || time < from) continue;
    if (record.kind === DecisionKind.ASKED) for (const id of record.permissionIds) answers.set(id, { time });
    const { settled } = record;
    if (!settled || settled.by === "" || settled.settledWith !== "") continue;
    // An edit says that the request was not right as it was.
    const isApproved = settled.outcome === PermissionOutcome.ONCE || settled.outcome === PermissionOutcome.ALWAYS;
    answers.set(settled.permissionId, { time, isApproved });
  }
  const past: PastRequest[] = [];
  const ids = [...answers].slice(0, maxRequests);
  for (let at = 0; at < ids.length && !isLate(); at += readAtOnce) {
    const some = ids.slice(at, at + readAtOnce);
    const found = await Promise.all(some.map(([id]) => parts.findAsk(id)));
    for (const [i, ask] of found.entries()) {
      const answer = some[i]?.[1];
      // An old request is gone with its session.
      if (ask && answer) past.push(pastRequestOf(ask.request, answer));
    }
    await turn();
  }
  const { rules, misses, isCut } = await suggestRules(parts.planner, principal, past, isLate);
  return {
    ...{ rules, misses, toml: tomlOf(rules), requests: past.length },
    answered: past.filter(({ isApproved }) => isApproved !== undefined).length,
    incomplete: reading.isCut || isCut || isLate() || answers.size > maxRequests,
  };
}

/** The facts about a request that suggestions use, with the answer of a person. */
interface PastRequest extends Pick<PermissionRequest, "agent" | "permission" | "patterns"> {
  /** The pattern of a rule for it; undefined if no rule can name it. */
  pattern: string | undefined;
  /** True if it has no risk and no warning, and "always" could answer it. */
  isHarmless: boolean;
  /** Absent if no person answered it. */
  isApproved?: boolean;
  /** The time of the answer, otherwise of the request, in ms since the epoch. */
  time: number;
}

/** Extracts from a request the facts that suggestions use. */
function pastRequestOf(
  request: Pick<PermissionRequest, "agent" | "permission" | "patterns" | "offers" | "risks" | "warnings">,
  answer: Pick<PastRequest, "isApproved" | "time">,
): PastRequest {
  const { agent, permission, patterns, risks, warnings, offers } = request;
  const isHarmless = risks.length === 0 && warnings.length === 0 && offers.length > 0 && !always.has(permission);
  return { agent, permission, patterns, pattern: patternOf(request), isHarmless, ...answer };
}

/** A file whose reading is restricted, a directory outside and a repetition are asked for because of what they are. */
const always: ReadonlySet<string> = new Set(["read", "external_directory", "doom_loop", "question"]);

/** Returns the pattern of a rule for a request: the first words of its command, as far as no option is bound, or the text itself. */
function patternOf({ patterns, offers }: Pick<PermissionRequest, "patterns" | "offers">): string | undefined {
  const [text = "", ...others] = patterns;
  if (others.length > 0) return undefined;
  const [prefix] = offers.flatMap(({ match }) => (match?.match.case === "prefix" ? match.match.value : []));
  const isFree = prefix && prefix.options.length === 0 && prefix.riskKinds.length === 0;
  const found = isFree ? `${prefix.words.join(" ")} *` : text;
  const isPlain = /^[\x20-\x7e]{1,200}$/.test(text) && !/[*?]/.test(isFree ? prefix.words.join("") : text);
  return isPlain && !/^\d+$/.test(found) ? found : undefined;
}

/** A rule that would have answered what people approved again and again. */
type SuggestedRule = MessageInitShape<typeof SuggestedRuleSchema> &
  Required<Pick<MessageInitShape<typeof SuggestedRuleSchema>, "agent" | "permission" | "pattern">>;
type Miss = MessageInitShape<typeof SuggestionMissSchema>;

const minApprovals = 5;
const minDays = 2;
const maxRules = 20;
const maxMisses = 10;
const maxAlsoAllows = 10;
/** Texts on which one rule is tried. */
const maxTried = 200;

/** Suggests rules, trying each on what was asked before as the service decides, and says why the rest yields none. */
async function suggestRules(
  planner: Pick<Planner, "explain" | "rules">,
  principal: Principal,
  past: readonly PastRequest[],
  isLate: () => boolean,
): Promise<{ rules: SuggestedRule[]; misses: Miss[]; isCut: boolean }> {
  const answered = past.filter(({ isApproved, pattern }) => isApproved !== undefined && pattern !== undefined);
  const groups = [...Map.groupBy(answered, ruleKeyOf).values()].map(groupOf).toSorted(byApprovals);
  const [rules, misses]: [SuggestedRule[], Miss[]] = [[], []];
  let isCut = false;
  for (const group of groups) {
    const { isHarmless, example, ...counts } = group;
    let reason = shortcomingOf(group);
    if (reason === undefined) {
      const isDone = rules.length === maxRules || isLate();
      const tried = isDone ? undefined : await tryRule(planner, principal, group, past);
      if (typeof tried === "string") reason = tried;
      isCut ||= tried === undefined || (typeof tried !== "string" && tried.isCut);
      if (typeof tried === "object") {
        const { agent, permission, pattern, approvals, days } = group;
        const { saves, alsoAllows } = tried;
        rules.push({ agent, permission, pattern, example, approvals, days, saves, alsoAllows });
      }
    }
    if (reason !== undefined && group.approvals >= 2 && misses.length < maxMisses) misses.push({ ...counts, reason });
  }
  return { rules: rules.map((rule) => ({ ...rule, toml: tomlOf([rule]) })), misses, isCut };
}

/** Identifies the rule that would answer a request. */
const ruleKeyOf = ({
  agent,
  permission,
  pattern,
}: {
  agent: string;
  permission: string;
  pattern: string | undefined;
}) => JSON.stringify([agent, permission, pattern]);

type Group = ReturnType<typeof groupOf>;

/** Counts the answers to the requests that one rule would answer. */
function groupOf(group: readonly PastRequest[]) {
  const approved = group.filter(({ isApproved }) => isApproved);
  const { agent = "", permission = "", pattern = "" } = group[0] ?? {};
  return {
    ...{ agent, permission, pattern, example: (approved[0] ?? group[0])?.patterns[0] ?? "" },
    ...{ approvals: approved.length, rejections: group.length - approved.length },
    days: new Set(group.map(({ time }) => Math.floor(time / dayMs))).size,
    isHarmless: group.every(({ isHarmless }) => isHarmless),
  };
}

const byApprovals = (one: Group, other: Group) =>
  other.approvals - one.approvals || one.pattern.localeCompare(other.pattern);

/** Returns what a group lacks; undefined if it lacks nothing. */
function shortcomingOf({ approvals, rejections, days, isHarmless }: Group): string | undefined {
  if (rejections > 0) return `and ${rejections === 1 ? "a rejection" : `${rejections} rejections`}: none may be`;
  if (!isHarmless) return "with a risk, a warning, or without an “always” to choose: these are always asked";
  if (approvals < minApprovals) return `${minApprovals} are needed`;
  return days < minDays ? `on one day: ${minDays} are needed` : undefined;
}

/**
 * Tries a rule on what was asked before; returns the reason if it would not hold, allow what people rejected, or pass a stricter
 * rule, and undefined if the principal has used up its time.
 */
async function tryRule(
  planner: Pick<Planner, "explain" | "rules">,
  principal: Principal,
  { agent, permission, pattern, example }: Group,
  past: readonly PastRequest[],
): Promise<string | { saves: number; alsoAllows: string[]; isCut: boolean } | undefined> {
  const rules = [create(PermissionRuleSchema, { permission, pattern, action: PermissionAction.ALLOW })];
  const isAllowed = async (text: string, by: typeof rules) => {
    const request = create(ExplainPermissionRequestSchema, { agent, permission, patterns: [text], rules: by });
    return (await planner.explain(principal, request)).action === PermissionAction.ALLOW;
  };
  try {
    if (await isStricter(planner, principal, agent, permission, pattern))
      return "a stricter rule of the configuration may meet it";
    if (await isAllowed(example, [])) return "the rules allow it now";
    if (!(await isAllowed(example, rules))) return "a rule would not suffice: it is asked for another reason";
    const similar = past.filter(
      (each) =>
        each.agent === agent &&
        each.permission === permission &&
        each.patterns.some((text) => firstWord(text) === firstWord(pattern)),
    );
    const texts = new Set(similar.flatMap(({ patterns }) => patterns));
    const allowed = new Map<string, boolean>();
    for (const text of [...texts].slice(0, maxTried)) allowed.set(text, await isAllowed(text, rules));
    const saved = similar.filter(({ patterns }) => patterns.every((text) => allowed.get(text)));
    if (saved.some(({ isApproved }) => isApproved === false)) return "a rule would allow what people rejected";
    const approved = new Set(similar.flatMap(({ patterns, isApproved }) => (isApproved ? patterns : [])));
    const alsoAllows = [...allowed].flatMap(([text, isAllowed]) => (isAllowed && !approved.has(text) ? text : []));
    return { saves: saved.length, alsoAllows: alsoAllows.slice(0, maxAlsoAllows), isCut: texts.size > maxTried };
  } catch (cause) {
    if (!(cause instanceof RequestError)) throw cause;
    // Otherwise an agent that is not configured any more, or one that this principal must not name.
    return cause.reason === ErrorReason.QUOTA_EXCEEDED ? undefined : cause.message;
  }
}

/** Checks if the configuration has an ask or a denial that the pattern may meet. */
async function isStricter(
  { rules }: Pick<Planner, "rules">,
  principal: Principal,
  agent: string,
  permission: string,
  pattern: string,
): Promise<boolean> {
  const { lists } = await rules(principal, { place: { case: undefined }, agent });
  return lists
    .filter(({ layer }) => layer !== PermissionLayer.DEFAULTS && layer !== PermissionLayer.PRESET)
    .some((list) =>
      list.rules.some(
        (rule) =>
          rule.action !== PermissionAction.ALLOW &&
          rule.pattern !== "*" &&
          (rule.permission === permission || /[*?]/.test(rule.permission)) &&
          mayMeet(rule.pattern, pattern),
      ),
    );
}

/** Checks by their first words if two patterns can match the same text. */
function mayMeet(one: string, other: string): boolean {
  const [first, second] = [firstWord(one), firstWord(other)];
  return first === second || /[*?]/.test(first);
}

const firstWord = (text: string) => text.split(" ", 1)[0] ?? "";

/** Writes rules with their tests as TOML. */
function tomlOf(rules: readonly SuggestedRule[]): string {
  const tables = Map.groupBy(rules, ({ agent, permission }) => `[agent.${key(agent)}.permission.${key(permission)}]`);
  const written = [...tables].map(([head, of]) =>
    [
      head,
      ...of.flatMap(({ pattern, approvals, days, saves, alsoAllows = [] }) => [
        `# approved ${approvals} times on ${days} days, never rejected; saves ${saves} questions`,
        ...(alsoAllows.length === 0 ? [] : [`# allows as well: ${alsoAllows.map(visibleLine).join(" · ")}`]),
        `${JSON.stringify(pattern)} = "allow"`,
      ]),
    ].join("\n"),
  );
  const tests = rules.map(({ agent, permission, example = "" }) =>
    [
      "[[permission_test]]",
      `agent = ${JSON.stringify(agent)}`,
      `permission = ${JSON.stringify(permission)}`,
      `pattern = ${JSON.stringify(example)}`,
      'expect = "allow"',
    ].join("\n"),
  );
  return [...written, ...tests].map((block) => `${block}\n`).join("\n");
}

const key = (name: string) => (/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name));
