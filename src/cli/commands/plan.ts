import type { Command } from "commander";
import { ToolErrorReasonSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { type PlanToolResponse, PlanToolResponseSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { exitCodeOfReason } from "../call/execute.ts";
import { collect, withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { readJsonObject } from "../json-argument.ts";
import { questionLines } from "../question/parse-answer.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { previewLines } from "../view/ask-view.ts";
import { decisionLines, paintAction, parseRule, type RuleOptions } from "../view/decision-view.ts";
import { wordOf } from "../view/words.ts";

/** Defines `toolgate plan`. */
export function definePlan(command: Command, context: CliContext): void {
  command
    .description("Say what a call would do and what it would ask; nothing is run or recorded")
    .argument("<tool>", "the tool's name; KIND:TOOL for one that an agent runs itself, such as claude:Bash")
    .argument("<json>", "its input: a JSON object, @FILE, or - for stdin")
    .option("--agent <name>", "who would call (default: the session's agent, else build)")
    .option("--session <id>", "the session whose workspace, rules and grants count")
    .option("--rule <rule>", '"PERMISSION PATTERN ACTION", tried as the last rule; may be repeated', collect, [])
    .action((tool: string, json: string, options: RuleOptions) =>
      withServer(context, command, "caller", async ({ tools }, screen) => {
        const { agent = "", session: sessionId = "", rule } = options;
        const input = await readJsonObject(json, "the input", screen.io);
        const answer = await tools.planTool({ tool, input, agent, sessionId, rules: rule.map(parseRule) });
        screen.show(PlanToolResponseSchema, answer, (paint) => planLines(answer, paint));
        return answer.problem && exitCodeOfReason(answer.problem.reason);
      }),
    );
}

function planLines({ title, action, decisions, asks, preview, problem }: PlanToolResponse, paint: Paint): string[] {
  const offers = asks.flatMap(({ permission, offers }) =>
    offers.map(({ text }) => `  ${paint("dim", "always")}   ${terminalLine(permission)}: ${terminalLine(text)}`),
  );
  return [
    `${paintAction(action, paint)}  ${paint("bold", terminalLine(title))}`,
    ...previewLines(preview, paint),
    ...asks.flatMap(({ question }) => question.flatMap((each, at) => questionLines(each, at, paint))),
    ...offers,
    ...(decisions.length > 0 ? [""] : []),
    ...decisions.flatMap((decision) => decisionLines(decision, paint)),
    ...(problem
      ? ["", `${paint("red", `✗ ${wordOf(ToolErrorReasonSchema, problem.reason)}`)}  ${terminalSafe(problem.message)}`]
      : []),
  ];
}
