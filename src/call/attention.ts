import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type AuditEntry,
  DecisionKind,
  PermissionAction,
  type PermissionDecision,
  PermissionLayerSchema,
  PermissionOutcome,
  PermissionReason,
  PermissionReasonSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { AttentionSchema, GetAttentionResponseSchema } from "../../gen/opencode/tool/v1/permission_service_pb.ts";

/** An approval within this time was hardly read. */
const hastyMs = 2_000;
const maxGroups = 100;

/** Counts the requests of the entries of an audit from a time on, by agent and by rule. It does not count who answered. */
export async function countAttention(
  entries: AsyncIterable<AuditEntry>,
  from: number,
): Promise<MessageInitShape<typeof GetAttentionResponseSchema>> {
  const total = createCounts("");
  const [agents, rules] = [new Map<string, Counts>(), new Map<string, Counts>()];
  const opened = new Map<string, number>();
  for await (const { time, record } of entries) {
    if (!record || time < from || !decides.has(record.kind)) continue;
    const { kind, agent, decisions, permissionIds, settled } = record;
    const call = JSON.stringify([record.sessionId, record.callId]);
    const groups = [total, countsIn(agents, agent)];
    for (const group of groups) group.calls.add(call);
    if (kind === DecisionKind.ASKED) {
      for (const id of permissionIds) opened.set(id, time);
      for (const group of groups) {
        group.askedCalls.add(call);
        for (const id of permissionIds) group.answers.set(id, undefined);
      }
    }
    const asked = settled && opened.get(settled.permissionId);
    if (!settled || asked === undefined) continue;
    const cause = askingIn(decisions);
    const byRule = cause === undefined ? [] : [countsIn(rules, causeOf(cause))];
    for (const group of byRule) group.askedCalls.add(call);
    const isPersons = settled.by !== "" && settled.settledWith === "";
    for (const group of [...groups, ...byRule])
      group.answers.set(settled.permissionId, isPersons ? { outcome: settled.outcome, ms: time - asked } : undefined);
  }
  return {
    total: summary(total),
    agents: listOf(agents),
    // A rule decides on patterns, not on calls.
    rules: listOf(rules).map((rule) => ({ ...rule, calls: 0 })),
  };
}

/** The kinds of records about the decision on a call. */
const decides: ReadonlySet<DecisionKind> = new Set([
  ...[DecisionKind.ALLOWED, DecisionKind.DENIED, DecisionKind.ASKED, DecisionKind.SETTLED],
]);

interface Counts {
  name: string;
  calls: Set<string>;
  askedCalls: Set<string>;
  /** The answers of people by request; undefined for a request that no person answered. */
  answers: Map<string, { outcome: PermissionOutcome; ms: number } | undefined>;
}

const createCounts = (name: string): Counts => ({
  ...{ name, calls: new Set(), askedCalls: new Set(), answers: new Map() },
});

function countsIn(groups: Map<string, Counts>, name: string): Counts {
  const found = groups.get(name) ?? createCounts(name);
  groups.set(name, found);
  return found;
}

const listOf = (groups: Map<string, Counts>) =>
  [...groups.values()]
    .map(summary)
    .toSorted((one, other) => other.requests - one.requests || one.name.localeCompare(other.name))
    .slice(0, maxGroups);

function summary({ name, calls, askedCalls, answers }: Counts) {
  const given = [...answers.values()].filter((answer) => answer !== undefined);
  const approvals = given.filter(({ outcome }) => outcome !== PermissionOutcome.REJECT);
  const times = given.map(({ ms }) => ms).toSorted((one, other) => one - other);
  const medianMs = times[Math.ceil(times.length / 2) - 1];
  return {
    ...{ name, calls: calls.size, askedCalls: askedCalls.size, requests: answers.size },
    ...{ approved: approvals.length, rejected: given.length - approvals.length },
    unanswered: answers.size - given.length,
    ...(medianMs !== undefined && { medianMs: Math.round(medianMs) }),
    hasty: approvals.filter(({ ms }) => ms <= hastyMs).length,
  } satisfies MessageInitShape<typeof AttentionSchema>;
}

/** Returns the first decision of a request that asks. */
export const askingIn = (decisions: readonly PermissionDecision[]) =>
  decisions.find(({ action }) => action === PermissionAction.ASK);

/** Names the rule that asks, or why it is asked without one. */
export function causeOf({ permission, layer, rule, reasonCode, matches }: PermissionDecision): string {
  if (rule) return `${PermissionLayerSchema.value[layer]?.localName.toLowerCase()} rule: ${namedRule(rule)}`;
  const unmet = matches.findLast((match) => match.unmet !== "")?.rule;
  if (reasonCode === PermissionReason.CONDITION && unmet) return `condition not met: ${namedRule(unmet)}`;
  const reason = PermissionReasonSchema.value[reasonCode]?.localName.toLowerCase() ?? "";
  return `${reason.replaceAll("_", " ")}: ${permission}`;
}

const namedRule = ({ permission, pattern }: { permission: string; pattern: string }) =>
  `${permission} ${JSON.stringify(pattern)}`;
