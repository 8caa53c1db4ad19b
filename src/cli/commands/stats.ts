import type { Command } from "commander";
import {
  type AuditEntry,
  DecisionKind,
  PermissionAction,
  type PermissionDecision,
  PermissionLayerSchema,
  PermissionOutcome,
  PermissionReason,
  PermissionReasonSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { type ToolStats, ToolStatsSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { auditEntries, daysAgo } from "../view/audit-entries.ts";
import { durationOf, momentOf, wordOf } from "../view/words.ts";

/** Defines `toolgate stats`. */
export function defineStats(command: Command, context: CliContext): void {
  command
    .description(
      "Show how calls went, by tool: all that ended at this server since it started; with --asks how often people were asked, by agent and rule",
    )
    .option("--asks", "count the questions to people in the audit, and how they were answered")
    .option("--days <number>", "with --asks: of the last days", "7")
    .action(({ asks, days }: { asks?: true; days: string }) =>
      withServer(context, command, "approver", async (server, screen) => {
        if (asks) {
          const from = daysAgo(days);
          const found = await countAttention(auditEntries(server, undefined), from);
          screen.note(`since ${momentOf(from)}`);
          if (screen.json) for (const each of found) screen.write(`${JSON.stringify(each)}\n`);
          else for (const line of table(attentionRows(found))) screen.write(`${line}\n`);
          return undefined;
        }
        const { since, tools } = await server.tools.getToolStats({});
        screen.note(`since ${momentOf(since)}`);
        if (screen.json) for (const tool of tools) screen.emit(ToolStatsSchema, tool);
        else for (const line of table(toolRows(tools))) screen.write(`${line}\n`);
        return undefined;
      }),
    );
}

function toolRows(tools: readonly ToolStats[]): string[][] {
  const rows = tools.map(({ tool, count, avgDuration, errors, timeouts }) => [
    ...[tool, String(count), durationOf(avgDuration), String(errors), String(timeouts)],
  ]);
  return [["tool", "count", "average", "errors", "timeouts"], ...rows];
}

function attentionRows(found: readonly Attention[]): string[][] {
  const rows = found.map(({ by, name, calls, askedCalls, asks, approved, rejected, unanswered, medianMs, hasty }) => [
    by === "agent" ? `agent ${name}` : by === "all" ? "all" : name,
    ...[calls ?? "", calls === undefined ? "" : share(askedCalls, calls), asks, approved, rejected, unanswered].map(
      String,
    ),
    medianMs === undefined ? "" : durationOf(medianMs),
    approved === 0 ? "" : `${share(hasty, approved)} %`,
  ]);
  const head = ["asked by", "calls", "asked of 100", "asks", "approved", "rejected", "unanswered", "median", "≤ 2 s"];
  return [head, ...rows];
}

const share = (part: number, whole: number) => ((100 * part) / Math.max(1, whole)).toFixed(1);

function table(all: readonly (readonly string[])[]): string[] {
  const shown = all.map((row) => row.map(terminalLine));
  const widths = (shown[0] ?? []).map((_, column) => Math.max(...shown.map((row) => row[column]?.length ?? 0)));
  return shown.map((row) =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0))).join("  "),
  );
}

/** The requests to people that one rule or one agent caused, and how they were answered. */
interface Attention {
  /** The group whose requests it counts. */
  by: "all" | "agent" | "rule";
  /** The agent, or the rule or the reason by which it was asked. */
  name: string;
  /** The calls that were decided; absent for a rule, which decides on patterns. */
  calls?: number;
  /** The calls of them for which people were asked. */
  askedCalls: number;
  /** The requests that were opened. */
  asks: number;
  approved: number;
  rejected: number;
  /** The requests that no person answered: expired, withdrawn, or still open. */
  unanswered: number;
  /** Half of the answers took at most this long; absent without answers. */
  medianMs?: number;
  /** The approvals that came within two seconds. */
  hasty: number;
}

/** An approval within this time was hardly read. */
const hastyMs = 2_000;

/** Counts the requests of the entries of an audit from a time on, by agent and by rule. It does not count who answered. */
export async function countAttention(entries: AsyncIterable<AuditEntry>, from: number): Promise<Attention[]> {
  const counts = new Map<string, Counts>();
  const countsOf = (by: Attention["by"], name: string): Counts => {
    const key = JSON.stringify([by, name]);
    const found = counts.get(key) ?? { by, name, calls: new Set(), askedCalls: new Set(), answers: new Map() };
    counts.set(key, found);
    return found;
  };
  const opened = new Map<string, number>();
  for await (const { time, record } of entries) {
    if (!record || time < from || !decides.has(record.kind)) continue;
    const { kind, agent, decisions, permissionIds, settled } = record;
    const call = JSON.stringify([record.sessionId, record.callId]);
    const groups = [countsOf("all", ""), countsOf("agent", agent)];
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
    const rule = decisions.find(({ action }) => action === PermissionAction.ASK);
    const byRule = rule ? [countsOf("rule", reasonOf(rule))] : [];
    for (const group of byRule) group.askedCalls.add(call);
    const isPersons = settled.by !== "" && settled.settledWith === "";
    for (const group of [...groups, ...byRule])
      group.answers.set(settled.permissionId, isPersons ? { outcome: settled.outcome, ms: time - asked } : undefined);
  }
  return [...counts.values()].map(summary).toSorted(inOrder);
}

/** The kinds of records about the decision on a call. */
const decides: ReadonlySet<DecisionKind> = new Set([
  ...[DecisionKind.ALLOWED, DecisionKind.DENIED, DecisionKind.ASKED, DecisionKind.SETTLED],
]);

interface Counts {
  by: Attention["by"];
  name: string;
  calls: Set<string>;
  askedCalls: Set<string>;
  /** The answers of people by request; undefined for a request that no person answered. */
  answers: Map<string, { outcome: PermissionOutcome; ms: number } | undefined>;
}

function summary({ by, name, calls, askedCalls, answers }: Counts): Attention {
  const given = [...answers.values()].filter((answer) => answer !== undefined);
  const approvals = given.filter(({ outcome }) => outcome !== PermissionOutcome.REJECT);
  const times = given.map(({ ms }) => ms).toSorted((one, other) => one - other);
  const medianMs = times[Math.ceil(times.length / 2) - 1];
  return {
    ...{ by, name, ...(by !== "rule" && { calls: calls.size }), askedCalls: askedCalls.size, asks: answers.size },
    approved: approvals.length,
    rejected: given.length - approvals.length,
    unanswered: answers.size - given.length,
    ...(medianMs !== undefined && { medianMs: Math.round(medianMs) }),
    hasty: approvals.filter(({ ms }) => ms <= hastyMs).length,
  };
}

const order: readonly Attention["by"][] = ["all", "agent", "rule"];
const inOrder = (one: Attention, other: Attention) =>
  order.indexOf(one.by) - order.indexOf(other.by) || other.asks - one.asks || one.name.localeCompare(other.name);

/** Names the rule that asks, or why it asks without one. */
function reasonOf({ permission, layer, rule, reasonCode, matches }: PermissionDecision): string {
  if (rule) return `${wordOf(PermissionLayerSchema, layer)} rule: ${rule.permission} ${JSON.stringify(rule.pattern)}`;
  const unmet = matches.findLast((match) => match.unmet !== "")?.rule;
  if (reasonCode === PermissionReason.CONDITION && unmet)
    return `condition not met: ${unmet.permission} ${JSON.stringify(unmet.pattern)}`;
  return `${wordOf(PermissionReasonSchema, reasonCode).replaceAll("_", " ")}: ${permission}`;
}
