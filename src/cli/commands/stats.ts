import type { Command } from "commander";
import {
  type Attention,
  type GetAttentionResponse,
  GetAttentionResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { type ToolStats, ToolStatsSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { daysOf } from "../view/audit-entries.ts";
import { durationOf, momentOf } from "../view/words.ts";

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
          const found = await server.permissions.getAttention({ days: daysOf(days) });
          screen.show(GetAttentionResponseSchema, found, () => table(attentionRows(found)));
          if (found.incomplete) screen.note("not all could be read within the limits: take fewer --days");
          return;
        }
        const { since, tools } = await server.tools.getToolStats({});
        screen.note(`since ${momentOf(since)}`);
        if (screen.json) for (const tool of tools) screen.emit(ToolStatsSchema, tool);
        else for (const line of table(toolRows(tools))) screen.write(`${line}\n`);
      }),
    );
}

function toolRows(tools: readonly ToolStats[]): string[][] {
  const rows = tools.map(({ tool, count, avgDuration, errors, timeouts }) => [
    ...[tool, String(count), durationOf(avgDuration), String(errors), String(timeouts)],
  ]);
  return [["tool", "count", "average", "errors", "timeouts"], ...rows];
}

function attentionRows({ total, agents, rules }: GetAttentionResponse): string[][] {
  const rows = [
    ...(total ? [attentionRow("all", total)] : []),
    ...agents.map((agent) => attentionRow(`agent ${agent.name}`, agent)),
    ...rules.map((rule) => attentionRow(rule.name, rule)),
  ];
  const head = ["asked by", "calls", "asked of 100", "asks", "approved", "rejected", "unanswered", "median", "≤ 2 s"];
  return [head, ...rows];
}

/** A rule decides on patterns, so it has no calls. */
function attentionRow(name: string, counts: Attention): string[] {
  const { calls, askedCalls, requests, approved, rejected, unanswered, medianMs, hasty } = counts;
  return [
    ...[name, calls === 0 ? "" : String(calls), calls === 0 ? "" : share(askedCalls, calls)],
    ...[requests, approved, rejected, unanswered].map(String),
    medianMs === undefined ? "" : durationOf(medianMs),
    approved === 0 ? "" : `${share(hasty, approved)} %`,
  ];
}

const share = (part: number, whole: number) => ((100 * part) / Math.max(1, whole)).toFixed(1);

function table(all: readonly (readonly string[])[]): string[] {
  const shown = all.map((row) => row.map(terminalLine));
  const widths = (shown[0] ?? []).map((_, column) => Math.max(...shown.map((row) => row[column]?.length ?? 0)));
  return shown.map((row) =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0))).join("  "),
  );
}
