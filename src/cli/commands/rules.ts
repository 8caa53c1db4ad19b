import { type Command, Option } from "commander";
import {
  PermissionAction,
  PermissionActionSchema,
  PermissionLayerSchema,
  type RuleList,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  ExplainPermissionResponseSchema,
  ListRulesResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { collect, withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { exitCodes } from "../failure/command-error.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { decisionLines, parseRule, type RuleOptions } from "../view/decision-view.ts";
import { wordOf } from "../view/words.ts";

/** Defines `toolgate rules`. */
export function defineRules(command: Command, context: CliContext): void {
  command
    .description(
      "Show every rule that holds for an agent. Defaults, preset, config and agent are one list, of which the last match decides; every other list can only narrow",
    )
    .option("--agent <name>", "whose rules (default: the session's agent, else build)")
    .option("--session <id>", "the session whose workspace and rules count")
    .addOption(
      new Option("--workspace <name>", "NAME or NAME/folder, without a session (default: default)").conflicts(
        "session",
      ),
    )
    .action(({ agent = "", session, workspace }: RulesOptions) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const answer = await permissions.listRules({
          agent,
          ...(session !== undefined && { place: { case: "sessionId", value: session } }),
          ...(workspace !== undefined && { place: { case: "workspace", value: workspace } }),
        });
        screen.note(`for ${terminalLine(answer.agent)} in ${terminalLine(answer.workspace)}`);
        screen.show(ListRulesResponseSchema, answer, (paint) => answer.lists.flatMap((list) => listLines(list, paint)));
      }),
    );
}

interface RulesOptions {
  agent?: string;
  session?: string;
  workspace?: string;
}

function listLines({ layer, source, rules, problem }: RuleList, paint: Paint): string[] {
  const name = wordOf(PermissionLayerSchema, layer);
  return [
    paint("bold", source === "" ? name : `${name} (${terminalLine(source)})`),
    ...(problem === "" ? [] : [`  ${paint("red", `everything asks: ${terminalLine(problem)}`)}`]),
    ...rules.map(({ permission, pattern, action, when }, index) => {
      const condition = when === "" ? "" : ` when ${terminalLine(when)}`;
      const words = `${terminalLine(permission)} ${terminalLine(JSON.stringify(pattern))} ${wordOf(PermissionActionSchema, action)}${condition}`;
      return `  ${paint("dim", String(index).padStart(3))}  ${words}`;
    }),
  ];
}

/** Defines `toolgate explain`. */
export function defineExplain(command: Command, context: CliContext): void {
  command
    .description("Say which rule decides on a command, path or address, as for a call; exits with 3 if it is denied")
    .argument("<permission>", "the kind, such as bash, edit or read")
    .argument("<pattern...>", "what would be asked for: commands, paths, addresses")
    .option("--agent <name>", "whose rules count (default: the session's agent, else build)")
    .option("--session <id>", "the session whose rules and grants count")
    .option("--rule <rule>", '"PERMISSION PATTERN ACTION", tried as the last rule; may be repeated', collect, [])
    .addHelpText("after", explainExamples)
    .action((permission: string, patterns: string[], options: RuleOptions) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const { agent = "", session: sessionId = "", rule } = options;
        const answer = await permissions.explainPermission({
          permission,
          patterns,
          agent,
          sessionId,
          rules: rule.map(parseRule),
        });
        screen.show(ExplainPermissionResponseSchema, answer, (paint) =>
          answer.decisions.flatMap((one) => decisionLines(one, paint)),
        );
        return answer.action === PermissionAction.DENY ? exitCodes.refused : undefined;
      }),
    );
}

const explainExamples = `
Examples:
  toolgate explain bash "git push origin main" "rm -rf build"
  toolgate explain edit src/main.ts --agent plan
  toolgate explain bash "npm test" --rule "bash npm * allow"`;
