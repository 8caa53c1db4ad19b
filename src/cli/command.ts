import { randomUUID } from "node:crypto";
import { type Command, InvalidArgumentError } from "commander";
import type { ServerConnection, TokenRole } from "./connection/connection.ts";
import type { ServerOptions } from "./connection/server-address.ts";
import type { CliContext } from "./context.ts";
import { CommandError, exitCodes } from "./failure/command-error.ts";
import type { Screen } from "./terminal/screen.ts";
import { terminalLine } from "./terminal/terminal-safe.ts";

/** The options that every command has. */
export interface GlobalOptions extends ServerOptions {
  json?: boolean;
  /** Only of `watch`: its lines are for a program, like those of --json. */
  jsonForm?: boolean;
}

/** The exit code of a command's body; without one it is 0. */
type Ended = Promise<number | undefined> | Promise<void>;

/** Runs a command's body against the server that its options name, with the token of a role. */
export async function withServer(
  context: CliContext,
  command: Command,
  role: TokenRole,
  body: (server: ServerConnection, screen: Screen, options: GlobalOptions) => Ended,
): Promise<void> {
  await withScreen(context, command, async (screen, options) => {
    const { env } = context.io;
    // The help of a command does without the client of the service.
    const { connectServer, findServerToken } = await import("./connection/connection.ts");
    const { readCertificates, serverUrl } = await import("./connection/server-address.ts");
    const token = findServerToken(role, options, env);
    const server = connectServer(serverUrl(options, env), token, readCertificates(options, env));
    return await usingServer(server, screen, () => body(server, screen, options));
  });
}

/** Runs work on a connection, prints its error, and closes the connection; returns the exit code. */
export async function usingServer(server: ServerConnection, screen: Screen, work: () => Ended): Promise<number> {
  try {
    return (await work()) ?? exitCodes.ok;
  } catch (error) {
    return await printFailure(error, screen, server);
  } finally {
    server.close();
  }
}

async function printFailure(error: unknown, screen: Screen, server?: ServerConnection): Promise<number> {
  const { commandFailure } = await import("./failure/failure.ts");
  const failure = commandFailure(error, server);
  screen.fail(failure);
  return failure.exitCode;
}

/** Runs a command's body, prints its error, and sets the exit code: the body's, or 0. */
export async function withScreen(
  { io, setExitCode }: CliContext,
  command: Command,
  body: (screen: Screen, options: GlobalOptions) => Ended,
): Promise<void> {
  const options = command.optsWithGlobals<GlobalOptions>();
  const { createScreen } = await import("./terminal/screen.ts");
  const screen = createScreen(io, options.json ?? options.jsonForm ?? false);
  try {
    setExitCode((await body(screen, options)) ?? exitCodes.ok);
  } catch (error) {
    setExitCode(await printFailure(error, screen));
  }
}

/** Refuses to write the path of a program that a runner such as npx holds in its cache: what starts it fails once that is emptied. */
export function refuseCachedProgram(program: readonly string[], command: string): void {
  const cached = program.find((word) => /[\\/](_npx|dlx(-[^\\/]*)?|bunx-[^\\/]*)[\\/]/.test(word));
  if (cached === undefined) return;
  throw new CommandError(
    `this program lies in a cache (${terminalLine(cached)}), and what would be written fails once that is emptied`,
    `install it where it stays, with \`npm install --global\` or in a project, then run its \`toolgate ${command}\``,
    exitCodes.failed,
  );
}

/** Makes an id on the client, so that a request whose response was lost can be repeated. */
export function newClientId(prefix: "ses" | "call"): string {
  return `${prefix}_${randomUUID().replaceAll("-", "")}`;
}

/** Collects an option that may be given several times. */
export function collect(value: string, before: readonly string[]): string[] {
  return [...before, value];
}

/** Parses a whole number of an option, such as milliseconds or a sequence number. */
export function wholeNumber(text: string): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && Number.isSafeInteger(value)) return value;
  throw new InvalidArgumentError("It must be a whole number.");
}

/** Reads a duration of an option, in ms. */
export function readDuration(text: string): number {
  const [, count, unit = ""] = /^(\d{1,5})([mhd])$/.exec(text) ?? [];
  const ms = Number(count) * (units.get(unit) ?? 0);
  if (ms > 0) return ms;
  throw new InvalidArgumentError("It must be a number of minutes, hours or days, such as 30m, 8h or 7d.");
}

const units = new Map([
  ["m", 60_000],
  ["h", 3_600_000],
  ["d", 86_400_000],
]);
