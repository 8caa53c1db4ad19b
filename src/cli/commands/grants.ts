import type { Command } from "commander";
import { type Grant, GrantSchema, GrantScopeSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf, wordOf } from "../view/words.ts";

/** Defines `toolgate grants`, `toolgate grants revoke` and `toolgate grants confirm`. */
export function defineGrants(command: Command, context: CliContext): void {
  command
    .option("--all", "also what was revoked, has expired or is used up")
    .option("--session <id>", "only what serves this session")
    .action((options: GrantsOptions) =>
      withServer(context, command, "approver", (server, screen) => list(server, screen, options)),
    );
  command
    .command("revoke")
    .description("end a grant; no call starts on the strength of it afterwards")
    .argument("<id>", "the grant")
    .action((grantId: string) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const { grant } = await permissions.revokeGrant({ grantId });
        if (grant) screen.show(GrantSchema, grant, (paint) => grantLines(grant, paint));
      }),
    );
  command
    .command("confirm")
    .description("let grants serve again that a restore suspended; without an id all of them")
    .argument("[ids...]", "the grants")
    .action((ids: string[]) =>
      withServer(context, command, "approver", async (server, screen) => {
        const suspended = ids.length > 0 ? ids : await suspendedGrants(server);
        for (const grantId of suspended) {
          const { grant } = await server.permissions.confirmGrant({ grantId });
          if (grant) screen.show(GrantSchema, grant, (paint) => grantLines(grant, paint));
        }
        if (suspended.length === 0) screen.note("no grant is suspended");
      }),
    );
}

async function suspendedGrants(server: ServerConnection): Promise<string[]> {
  const grants = await Array.fromAsync(eachGrant(server, {}));
  return grants.flatMap(({ id, suspended }) => (suspended > 0 ? id : []));
}

interface GrantsOptions {
  all?: boolean;
  session?: string;
}

async function list(server: ServerConnection, screen: Screen, options: GrantsOptions): Promise<void> {
  let isEmpty = true;
  for await (const grant of eachGrant(server, options)) {
    screen.show(GrantSchema, grant, (paint) => grantLines(grant, paint));
    isEmpty = false;
  }
  if (isEmpty) screen.note("nothing is granted");
}

async function* eachGrant(
  { permissions }: ServerConnection,
  { all = false, session = "" }: GrantsOptions,
): AsyncGenerator<Grant> {
  const pages = pagesOf((page) => permissions.listGrants({ ...page, includeDead: all, sessionId: session }));
  for await (const { grants } of pages) yield* grants;
}

function grantLines(grant: Grant, paint: Paint): string[] {
  const { id, permission, text, scope, tool, agent, workspace, grantedBy, created, lastUsed } = grant;
  const bound = [wordOf(GrantScopeSchema, scope), agent && `agent ${agent}`, `tool ${tool}`, workspace].filter(
    (word) => word !== "",
  );
  const used = lastUsed > 0 ? `last used at ${momentOf(lastUsed)}` : "not used yet";
  return [
    `${paint("bold", terminalLine(id))}  ${terminalLine(permission)}  ${terminalLine(text)}`,
    `  ${paint("dim", terminalLine(`${bound.join(", ")}; by ${grantedBy} at ${momentOf(created)}; ${used}`))}  ${lifeOf(grant, paint)}`,
  ];
}

function lifeOf({ revoked, suspended, expires, times, left }: Grant, paint: Paint): string {
  if (revoked > 0) return paint("red", `revoked at ${momentOf(revoked)}`);
  if (suspended > 0) return paint("yellow", `suspended by a restore at ${momentOf(suspended)}: confirm or revoke it`);
  if (expires > 0 && expires <= Date.now()) return paint("red", `expired at ${momentOf(expires)}`);
  if (times > 0 && left === 0) return paint("red", `used up: ${times} of ${times}`);
  const end = expires === 0 ? "until revoked" : `until ${momentOf(expires)}`;
  return paint("green", times === 0 ? end : `${left} of ${times} left, ${end}`);
}
