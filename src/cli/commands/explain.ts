import type { Command } from "commander";
import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { ExplainPermissionResponseSchema } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { collect, withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { exitCodes } from "../failure/command-error.ts";
import { decisionLines, parseRule, type RuleOptions } from "../view/decision-view.ts";

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
