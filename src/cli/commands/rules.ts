import { type Command, Option } from "commander";
import {
  PermissionActionSchema,
  PermissionLayerSchema,
  type RuleList,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { ListRulesResponseSchema } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
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
        return undefined;
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
