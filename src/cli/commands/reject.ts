import type { Command } from "commander";
import { PermissionSettledSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { settledWords } from "../view/settled.ts";

/** Defines `toolgate reject`. */
export function defineReject(command: Command, context: CliContext): void {
  command
    .argument("[session]", "the session")
    .option("--agent <name>", "only those of this agent; without a session, those of all its sessions", "")
    .option("-m, --message <text>", "advice for the model", "")
    .action((sessionId: string | undefined, { message, agent }: { message: string; agent: string }) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const { settled } = await permissions.rejectPermissions({ sessionId: sessionId ?? "", agent, message });
        for (const end of settled) {
          screen.show(PermissionSettledSchema, end, (paint) => [
            `${terminalLine(end.permissionId)}  ${paint("dim", `call ${terminalLine(end.callId)}`)}  ${settledWords(end)}`,
          ]);
        }
        if (settled.length === 0) screen.note("no permission request is open");
        return undefined;
      }),
    );
}
