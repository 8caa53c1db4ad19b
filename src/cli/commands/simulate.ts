import type { Command } from "commander";
import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type PolicyChange,
  SimulatePolicyResponseSchema,
  type SimulationSummary,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { changeWords, simulationLines } from "../../view/simulation.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { daysAgo } from "../view/audit-entries.ts";

/** Defines `toolgate simulate`. */
export function defineSimulate(command: Command, context: CliContext): void {
  command
    .description(
      "Try the rules of a file on the calls of the last days: which decisions would change, first those that people rejected and that would be allowed. Nothing is applied, and only the tables of rules are sent",
    )
    .argument("<file>", "a configuration, or a file with its tables permission, agent and preset")
    .option("--days <number>", "take the decisions of the last days", "30")
    .option("--agent <name>", "take those for one agent")
    .option("--fail-on <change>", "exit with 3 if a decision would `widen`: be allowed, or asked instead of denied")
    .addHelpText("after", examples)
    .action((file: string, { days, agent = "", failOn }: { days: string; agent?: string; failOn?: string }) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        if (failOn !== undefined && failOn !== "widen")
          throw new UsageError(`--fail-on ${failOn} is not known`, "write --fail-on widen");
        const from = daysAgo(days);
        const service = await context.loadService();
        const candidateToml = service.candidateOfFile(file);
        let summary: SimulationSummary | undefined;
        for await (const part of permissions.simulatePolicy({ candidateToml, from, agent })) {
          const { kind } = part;
          if (kind.case === "progress") screen.note(`${kind.value.decisions} decisions read`);
          if (kind.case === "summary") summary = kind.value;
          if (kind.case === "progress") continue;
          if (screen.json) screen.emit(SimulatePolicyResponseSchema, part);
          else if (kind.case === "change") screen.write(changeLines(kind.value).join(""));
        }
        if (!summary) throw new CommandError("the service sent no summary", "run the command again", exitCodes.failed);
        if (summary.unfaithful > 0)
          throw new CommandError(
            `the result cannot be relied on: ${summary.unfaithful} decisions come out otherwise by the rules that made them, such as ${terminalLine(summary.unfaithfulExample)}`,
            "report it with that example; the record has what the decision rests on",
            exitCodes.failed,
          );
        for (const line of simulationLines(summary, terminalLine)) screen.note(line);
        if (failOn === undefined) return undefined;
        if (summary.leftOut > 0)
          throw new CommandError(
            `${summary.leftOut} decisions were not judged in time`,
            "take fewer --days, or one --agent",
            exitCodes.failed,
          );
        return summary.widened > 0 ? exitCodes.refused : undefined;
      }),
    );
}

function changeLines(change: PolicyChange): string[] {
  const { after, old, examples } = change;
  const deciding = after === PermissionAction.ALLOW ? change.new : (change.new ?? old);
  return [
    `${changeWords(change, terminalLine)}\n`,
    ...examples.map((text) => `    ${terminalLine(text)}\n`),
    ...(deciding ? [`  now: ${terminalLine(old?.reason ?? "")}\n  then: ${terminalLine(deciding.reason)}\n`] : []),
  ];
}

const examples = `
Examples:
  toolgate simulate next.toml
  toolgate simulate next.toml --days 7 --fail-on widen`;
