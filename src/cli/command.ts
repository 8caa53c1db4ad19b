import { randomUUID } from "node:crypto";
import type { Command } from "commander";
import {
  connectServer,
  findToken,
  readCertificates,
  type ServerConnection,
  type ServerOptions,
  serverUrl,
  type TokenRole,
} from "./connection.ts";
import { exitCodes } from "./exit-codes.ts";
import { commandFailure } from "./failure.ts";
import { createScreen, type Screen } from "./terminal/screen.ts";

/** The options that every command has. */
export interface GlobalOptions extends ServerOptions {
  json?: boolean;
  /** Of `watch`: the lines are for a program, too. */
  jsonForm?: boolean;
}

/** Runs a command's body against the server that its options name, with the token of a role. */
export async function withServer(
  command: Command,
  role: TokenRole,
  body: (server: ServerConnection, screen: Screen, options: GlobalOptions) => Promise<number | undefined>,
): Promise<void> {
  await withScreen(command, async (screen, options) => {
    const server = connectServer(serverUrl(options.server), findToken(role, options), readCertificates(options));
    try {
      return await body(server, screen, options);
    } catch (error) {
      const failure = commandFailure(error, server);
      screen.fail(failure);
      return failure.exitCode;
    } finally {
      server.close();
    }
  });
}

/** Runs a command's body, prints what goes wrong, and sets the exit code: the body's, or 0. */
export async function withScreen(
  command: Command,
  body: (screen: Screen, options: GlobalOptions) => Promise<number | undefined>,
): Promise<void> {
  const options = command.optsWithGlobals<GlobalOptions>();
  const json = options.json ?? options.jsonForm ?? false;
  const screen = createScreen({ stdout: process.stdout, stderr: process.stderr, json });
  try {
    process.exitCode = (await body(screen, options)) ?? exitCodes.ok;
  } catch (error) {
    const failure = commandFailure(error);
    screen.fail(failure);
    process.exitCode = failure.exitCode;
  }
}

/** A new id, made here so that a lost reply can be repeated. */
export function newClientId(prefix: "ses" | "call"): string {
  return `${prefix}_${randomUUID().replaceAll("-", "")}`;
}

/** Collects an option that may be given several times. */
export function collect(value: string, before: readonly string[]): string[] {
  return [...before, value];
}
