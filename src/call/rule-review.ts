import { setImmediate as turn } from "node:timers/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type AuditEntry, DecisionKind, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type {
  GetAttentionResponseSchema,
  SuggestRulesRequest,
  SuggestRulesResponseSchema,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskStore } from "../approval/ports.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { countAttention } from "./attention.ts";
import { type AuditSource, auditPages } from "./audit-pages.ts";
import { createTimeBudget } from "./line-analysis.ts";
import type { Planner } from "./planner.ts";
import { type PastRequest, pastRequestOf, ruleKeyOf, suggestRules, tomlOf } from "./suggestions.ts";

interface RuleReviewParts extends AuditSource, Pick<AskStore, "findAsk"> {
  planner: Pick<Planner, "explain" | "rules">;
  /** Ms since the epoch, by the clock of the store. */
  now(): number;
  /** Ms, monotonic. */
  clock?: () => number;
}

type Suggestions = MessageInitShape<typeof SuggestRulesResponseSchema>;

/** Reads the past, so that people can review the rules. */
export interface RuleReview {
  /** Suggests rules; for one request the rule that would have answered it. */
  suggest(
    principal: Principal,
    days: SuggestRulesRequest["days"],
    request: PermissionRequest | undefined,
  ): Promise<Suggestions>;
  /** Counts the requests to people. */
  attention(principal: Principal, days: number): Promise<MessageInitShape<typeof GetAttentionResponseSchema>>;
}

const maxMs = 10_000;
const budgetMs = 30_000;
const windowMs = 60_000;
const cachedMs = 60_000;
const maxRequests = 5_000;
const maxRecords = 100_000;
const readAtOnce = 50;
const dayMs = 86_400_000;

/** Creates the review of a replica. It runs one reading at a time, in short turns, and caches the results. */
export function createRuleReview(parts: RuleReviewParts): RuleReview {
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
    async suggest(principal, days, request) {
      const wanted = request && pastRequestOf(request, { time: request.created });
      if (wanted && (!wanted.isHarmless || wanted.pattern === undefined)) return {};
      const name = nameOf("suggest", principal, days);
      const found = await cached(name, principal, (isLate) => suggest(parts, principal, fromOf(days), isLate));
      if (!wanted) return found;
      const rules = found.rules.filter((rule) => ruleKeyOf(rule) === ruleKeyOf(wanted));
      return { ...found, misses: [], rules, toml: tomlOf(rules) };
    },
    attention: (principal, days) =>
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
