import { setTimeout as delay } from "node:timers/promises";
import type { Command } from "commander";
import { type GlobalOptions, usingServer, withScreen } from "../command.ts";
import type { CliContext, TableFlags } from "../context.ts";
import { errorInfoOf } from "../failure/failure.ts";
import type { Screen } from "../terminal/screen.ts";
import { connectServer, findServerToken, type ServerConnection } from "./connection.ts";
import { readCertificates, serverUrl } from "./server-address.ts";

/** Adds the options that name the service's table to a command for the operator. */
export function forOperator(command: Command): Command {
  return command
    .option("--data <dir>", "as the operator: the data directory of the service")
    .option("--config <file>", "as the operator: the configuration that names the data directory or the store");
}

/**
 * Works with the token that is named or stored. Where that may not, or where there is none, the operator's right to the table makes a
 * token with the role admin for this one command.
 */
export async function asAdmin(
  context: CliContext,
  command: Command,
  { data, config }: TableFlags,
  work: (server: ServerConnection, screen: Screen) => Promise<void>,
): Promise<void> {
  await withScreen(context, command, async (screen, options) => {
    const { env } = context.io;
    const own = findServerToken("approver", options, env);
    if (data === undefined && own.value !== undefined) {
      const server = connectTo(options, own, context);
      let isRefused = false;
      const exitCode = await usingServer(server, screen, () =>
        work(server, screen).catch((error: unknown) => {
          const isNamed = [options.token, options.tokenFile, env.TOOLGATE_TOKEN].some(Boolean);
          isRefused = !isNamed && errorInfoOf(error)?.reason === "ROLE_MISSING";
          if (!isRefused) throw error;
        }),
      );
      if (!isRefused) return exitCode;
    }
    const table = await (await context.loadService()).openLocalCredentials({
      ...(data !== undefined && { data }),
      ...(config !== undefined && { config }),
    });
    const rights = { roles: ["admin"], agents: [], workspaces: [], label: `toolgate ${command.parent?.name()}` };
    const { token, credential } = await table.create({ ...rights, expires: Date.now() + lifeMs });
    const source = `a token for this command from the table of ${table.place} was sent`;
    const server = connectTo(options, { value: token, source }, context);
    try {
      return await usingServer(server, screen, () => untilKnown(() => work(server, screen)));
    } finally {
      await table.revoke(credential.id);
      await table.close();
    }
  });
}

function connectTo(
  options: GlobalOptions,
  token: ReturnType<typeof findServerToken>,
  { io: { env } }: CliContext,
): ServerConnection {
  return connectServer(serverUrl(options, env), token, readCertificates(options, env));
}

/** Tries again while a service on a shared store has not read the new token. */
async function untilKnown(work: () => Promise<void>): Promise<void> {
  for (let left = knownTries; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (left === 0 || errorInfoOf(error)?.reason !== "UNAUTHENTICATED") throw error;
      await delay(knownPauseMs);
    }
  }
}

const lifeMs = 60_000;
const knownTries = 15;
const knownPauseMs = 200;
