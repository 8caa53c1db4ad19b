import type { Command } from "commander";
import { type ToolStats, ToolStatsSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { durationOf, momentOf } from "../view/words.ts";

/** Defines `toolgate stats`. */
export function defineStats(command: Command, context: CliContext): void {
  command
    .description("Show how calls went, by tool: all that ended at this server since it started")
    .action((_options: object) =>
      withServer(context, command, "approver", async ({ tools: server }, screen) => {
        const { since, tools } = await server.getToolStats({});
        screen.note(`since ${momentOf(since)}`);
        if (screen.json) for (const tool of tools) screen.emit(ToolStatsSchema, tool);
        else for (const line of table(tools)) screen.write(`${line}\n`);
        return undefined;
      }),
    );
}

function table(tools: readonly ToolStats[]): string[] {
  const rows = tools.map(({ tool, count, avgDuration, errors, timeouts }) => [
    terminalLine(tool),
    String(count),
    durationOf(avgDuration),
    String(errors),
    String(timeouts),
  ]);
  const all = [["tool", "count", "average", "errors", "timeouts"], ...rows];
  const widths = [0, 1, 2, 3, 4].map((column) => Math.max(...all.map((row) => row[column]?.length ?? 0)));
  return all.map((row) =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0))).join("  "),
  );
}
