import type { Command } from "commander";
import {
  type SuggestionMiss,
  SuggestRulesResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { daysOf } from "../view/audit-entries.ts";

/** Defines `toolgate suggest`. */
export function defineSuggest(command: Command, context: CliContext): void {
  command
    .description(
      "Print rules for what people approved at least five times on two days and never rejected, as TOML with their tests, and what the rest lacks. Nothing is applied",
    )
    .option("--days <number>", "look at the answers of the last days", "30")
    .action(({ days }: { days: string }) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const found = await permissions.suggestRules({ days: daysOf(days) });
        if (screen.json) return screen.emit(SuggestRulesResponseSchema, found);
        const { rules, misses, toml, requests, answered, incomplete } = found;
        screen.write(terminalSafe(toml));
        screen.note(
          `${answered} of ${requests} requests of the last ${days === "1" ? "day" : `${days} days`} were answered by people`,
        );
        for (const miss of misses) screen.note(`no rule: ${missWords(miss)}`);
        if (rules.length > 0) screen.note("put what you want into the configuration, and simulate it");
        else if (misses.length === 0) screen.note("no rule: nothing was approved twice");
        if (incomplete) screen.note("not all could be read or tried within the limits: take fewer --days");
      }),
    );
}

function missWords({ agent, permission, pattern, approvals, reason }: SuggestionMiss): string {
  const what = `${terminalLine(permission)} ${terminalLine(JSON.stringify(pattern))}`;
  return `${approvals} approvals of ${what} for agent ${terminalLine(agent)}, ${terminalLine(reason)}`;
}
