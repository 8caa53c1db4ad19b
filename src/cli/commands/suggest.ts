import { Code, ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import { DecisionKind, PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import { auditEntries, daysAgo } from "../view/audit-entries.ts";
import type { PastRequest } from "../view/suggestions.ts";
import { tomlOf, tryRules } from "../view/tried-rules.ts";

/** Defines `toolgate suggest`. */
export function defineSuggest(command: Command, context: CliContext): void {
  command
    .description(
      "Print rules for what people approved at least five times on two days and never rejected, as TOML with their tests. Nothing is applied",
    )
    .option("--days <number>", "look at the answers of the last days", "30")
    .action(({ days }: { days: string }) =>
      withServer(context, command, "approver", async (server, screen) => {
        const past = await readRequests(server, daysAgo(days));
        const tried = await tryRules(server, past);
        if (screen.json) for (const each of tried) screen.write(`${JSON.stringify(each)}\n`);
        else screen.write(tomlOf(tried));
        const what = `${past.length} requests of the last ${days} days`;
        screen.note(
          tried.length === 0 ? `${what} suggest no rule` : `from ${what}; put what you want into the configuration`,
        );
        return undefined;
      }),
    );
}

/** Reads the requests that were opened or answered and are still stored, with the answers that people gave to these themselves. */
async function readRequests(server: ServerConnection, from: number): Promise<PastRequest[]> {
  const answers = new Map<string, Omit<PastRequest, "request">>();
  for await (const { record, time } of auditEntries(server, undefined)) {
    if (!record || time < from) continue;
    const { kind, permissionIds, settled } = record;
    if (kind === DecisionKind.ASKED) for (const id of permissionIds) answers.set(id, { time });
    if (kind !== DecisionKind.SETTLED || !settled || settled.by === "" || settled.settledWith !== "") continue;
    const isApproved = settled.outcome === PermissionOutcome.ONCE || settled.outcome === PermissionOutcome.ALWAYS;
    answers.set(settled.permissionId, { time, isApproved });
  }
  const found: PastRequest[] = [];
  for (const [permissionId, answer] of answers) {
    const { permission: request } = await server.permissions.getPermission({ permissionId }).catch((cause: unknown) => {
      if (cause instanceof ConnectError && cause.code === Code.NotFound) return { permission: undefined };
      throw cause;
    });
    if (request) found.push({ request, ...answer });
  }
  return found;
}
