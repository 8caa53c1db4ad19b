import { Argument, type Command } from "commander";
import { withServer } from "../command.ts";
import { findAgentUser } from "../connect/agent-user.ts";
import { planDisconnect, undoConnector } from "../connect/disconnect-agent.ts";
import { diffOf } from "../connect/file-change.ts";
import { type AgentKind, agentKinds, readRecord } from "../connect/record.ts";
import type { CliContext } from "../context.ts";
import { exitCodes } from "../exit-codes.ts";
import { UsageError } from "../failure/command-error.ts";

/** Defines `toolgate disconnect`. */
export function defineDisconnect(command: Command, context: CliContext): void {
  command
    .description("Remove what `toolgate connect` wrote for an agent, and revoke its tokens")
    .addArgument(new Argument("<agent>", "the kind of agent").choices(agentKinds))
    .option("--user <name>", "the user as which the agent runs; only for root (default: yourself)")
    .action((kind: AgentKind, { user: named }: { user?: string }) =>
      withServer(context, command, "approver", async (approver, screen) => {
        const user = findAgentUser(named, screen.io);
        const record = readRecord(kind, user);
        if (record === undefined) throw new UsageError(`${kind} is not connected`, `see \`toolgate connect --check\``);
        if (record.server !== approver.url)
          throw new UsageError(`${kind} is connected to ${record.server}`, `add --server ${record.server}`);
        const changes = planDisconnect(record, user);
        for (const text of changes.map(diffOf)) screen.note(text.trimEnd());
        const left = await undoConnector(record, changes, { user, approver });
        for (const text of left) screen.alert(text);
        if (screen.json) screen.write(`${JSON.stringify({ kind, server: record.server, left })}\n`);
        else screen.note(`${kind} is disconnected, and its tokens are revoked`);
        return left.length === 0 ? exitCodes.ok : exitCodes.failed;
      }),
    );
}
