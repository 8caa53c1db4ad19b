import { create } from "@bufbuild/protobuf";
import { type Command, InvalidArgumentError, Option } from "commander";
import {
  CreateTokenResponseSchema,
  type Credential,
  CredentialSchema,
} from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { collect, type GlobalOptions, wholeNumber, withScreen, withServer } from "../command.ts";
import { findServerToken, type ServerConnection } from "../connection/connection.ts";
import type { CliContext, LocalCredentials, TableFlags } from "../context.ts";
import { CommandError } from "../failure/command-error.ts";
import { commandFailure, errorInfoOf } from "../failure/failure.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate token create`, `list` and `revoke`. */
export function defineToken(command: Command, context: CliContext): void {
  withTable(command.command("create").description("create a token and print it, once"))
    .addOption(
      new Option("--role <role>", `what it may do: ${roleNames.join(", ")} (repeatable)`)
        .argParser(addRole)
        .makeOptionMandatory(),
    )
    .option("--agent <name>", "an agent as which it may act (repeatable; default: all)", collect, [])
    .option("--workspace <name>", "a workspace root in which it may act (repeatable; default: all)", collect, [])
    .option("--tool <name>", "a tool that a worker may bring; * matches any characters (repeatable)", collect, [])
    .option("--permission <name>", "what these tools may ask beside their names (repeatable)", collect, [])
    .option("--may-call <name>", "a tool that the bodies of a worker may call (repeatable; default: none)", collect, [])
    .option("--idempotent", "the tools of a worker may be run again after it was lost, where they say so")
    .option(
      "--pin <id>",
      "the only definition of a tool that a worker may bring (repeatable; default: any)",
      collect,
      [],
    )
    .option("--label <text>", "a text for people")
    .option("--days <count>", "its lifetime (default: until it is revoked)", wholeNumber)
    .addHelpText("after", createHelp)
    .action((options: CreateOptions, sub: Command) => createToken(context, sub, options));
  withTable(
    command.command("list").description("list the tokens and sign-ins that the service stores as hashes"),
  ).action((options: TableFlags, sub: Command) =>
    onTable(context, sub, options, {
      async served({ credentials: service }) {
        const pages = await Array.fromAsync(pagesOf((page) => service.listCredentials(page)));
        return pages.flatMap(({ credentials }) => credentials);
      },
      local: async (table) => table.list(),
      show: (found, screen) => {
        for (const each of found) screen.show(CredentialSchema, each, (paint) => credentialLines(each, paint));
        if (found.length === 0) screen.note("no credential is stored");
      },
    }),
  );
  withTable(command.command("revoke").description("end a token or a sign-in at once"))
    .argument("<id>", "its id, as `token list` prints it")
    .action((id: string, options: TableFlags, sub: Command) =>
      onTable(context, sub, options, {
        served: async ({ credentials }) => (await credentials.revokeCredential({ id })).credential,
        local: (table) => table.revoke(id),
        show: (credential, screen) => {
          if (credential) screen.show(CredentialSchema, credential, (paint) => credentialLines(credential, paint));
        },
      }),
    );
}

const roleNames = ["caller", "approver", "watcher", "admin", "host", "worker", "relay"];

function addRole(role: string, before: readonly string[] = []): string[] {
  if (roleNames.includes(role)) return [...before, role];
  throw new InvalidArgumentError(`It must be one of ${roleNames.join(", ")}.`);
}

interface CreateOptions extends TableFlags {
  role: string[];
  agent: string[];
  workspace: string[];
  tool: string[];
  permission: string[];
  mayCall: string[];
  idempotent?: boolean;
  pin: string[];
  label?: string;
  days?: number;
}

function withTable(command: Command): Command {
  return command
    .option("--data <dir>", "change the table of this data directory, without asking the service")
    .option("--config <file>", "the configuration that names the data directory or the store");
}

async function createToken(context: CliContext, command: Command, options: CreateOptions): Promise<void> {
  const { role: roles, agent: agents, workspace: workspaces, label = "", days = 0 } = options;
  const expires = days === 0 ? 0 : Date.now() + days * 86_400_000;
  const worker = workerRightsOf(options);
  const wanted = { roles, agents, workspaces, label, expires, ...(worker && { worker }) };
  await onTable(context, command, options, {
    served: ({ credentials }) => credentials.createToken(wanted),
    // No sign-in gives these roles: an approver could make another one of itself, and answer its own calls with it.
    isForOperator: roles.some((role) => !["caller", "host", "worker"].includes(role)),
    local: async (table) => create(CreateTokenResponseSchema, await table.create(wanted)),
    show(response, screen) {
      if (screen.json) return screen.emit(CreateTokenResponseSchema, response);
      const { token, credential } = response;
      if (credential) for (const line of credentialLines(credential, screen.paint.err)) screen.note(line);
      screen.write(`${token}\n`);
    },
  });
}

/** Returns the limits of a worker; undefined if no option names one. */
function workerRightsOf({ tool: tools, permission: permissions, mayCall: calls, idempotent, pin }: CreateOptions) {
  const isNamed = [tools, permissions, calls, pin].some(({ length }) => length > 0) || idempotent !== undefined;
  return isNamed ? { tools, permissions, calls, idempotent: idempotent ?? false, pin } : undefined;
}

/** The two ways to the table: by the service, or by its files for the operator. */
interface TableWork<T> {
  served(server: ServerConnection): Promise<T>;
  /** True if a stored sign-in cannot do it. */
  isForOperator?: boolean;
  local(table: LocalCredentials): Promise<T>;
  show(result: T, screen: Screen): void;
}

/**
 * Asks the service, or opens the table itself: with --data, and where neither a server nor a token is named and no stored sign-in
 * can do it.
 */
async function onTable<T>(context: CliContext, command: Command, flags: TableFlags, work: TableWork<T>): Promise<void> {
  const options = command.optsWithGlobals<GlobalOptions>();
  const { env } = context.io;
  const { server: url, token, tokenFile } = options;
  const isNamed = [url, token, tokenFile, env.TOOLGATE_URL, env.TOOLGATE_TOKEN].some(Boolean);
  const hasSignIn = !work.isForOperator && findServerToken("approver", options, env).value !== undefined;
  if (flags.data === undefined && (isNamed || hasSignIn))
    return await withServer(context, command, "approver", async (server, screen) => {
      work.show(await work.served(server).catch((error: unknown) => throwWithData(error, server)), screen);
    });
  await withScreen(context, command, async (screen) => {
    const service = await context.loadService();
    const { data, config } = flags;
    const table = await service.openLocalCredentials({ ...(data && { data }), ...(config && { config }) });
    try {
      work.show(await work.local(table), screen);
      screen.note(`in the table of ${terminalLine(table.place)}`);
    } finally {
      await table.close();
    }
  });
}

/** Adds the operator's way to the next step of a refusal. */
function throwWithData(error: unknown, server: ServerConnection): never {
  if (!["ROLE_MISSING", "UNAUTHENTICATED"].includes(errorInfoOf(error)?.reason ?? "")) throw error;
  const { message, next, exitCode } = commandFailure(error, server);
  const local = "or run it on the service's machine with --data DIR, the data directory of the service";
  throw new CommandError(message, `${next}; ${local}`, exitCode, { cause: error });
}

function credentialLines(credential: Credential, paint: Paint): string[] {
  const { id, roles, label, created, agents, workspaces, issuer, worker } = credential;
  const bound = [
    ...(agents.includes("*") ? [] : [`agents ${agents.join(", ")}`]),
    ...(workspaces.includes("*") ? [] : [`workspaces ${workspaces.join(", ")}`]),
    ...(worker ? [`tools ${worker.tools.join(", ")}`] : []),
    ...(worker && worker.permissions.length > 0 ? [`permissions ${worker.permissions.join(", ")}`] : []),
    ...(worker && worker.calls.length > 0 ? [`may call ${worker.calls.join(", ")}`] : []),
    ...(worker?.idempotent ? ["may repeat idempotent tools"] : []),
    ...(worker && worker.pin.length > 0 ? [`only definitions ${worker.pin.join(", ")}`] : []),
  ];
  const words = [`"${label}"`, ...bound, `created at ${momentOf(created)}${issuer === "" ? "" : ` by ${issuer}`}`].join(
    "; ",
  );
  return [
    `${paint("bold", terminalLine(id))}  ${terminalLine(roles.join(", "))}`,
    `  ${paint("dim", terminalLine(words))}  ${lifeOf(credential, paint)}`,
  ];
}

function lifeOf({ revoked, expires }: Credential, paint: Paint): string {
  if (revoked > 0) return paint("red", `revoked at ${momentOf(revoked)}`);
  if (expires === 0) return paint("green", "until revoked");
  if (expires <= Date.now()) return paint("red", `expired at ${momentOf(expires)}`);
  return paint("green", `until ${momentOf(expires)}`);
}

const createHelp = `
Examples:
  toolgate token create --role approver                     on the service's machine, by its operator
  toolgate token create --role caller --agent build --label ci --days 90
  toolgate token create --role approver --data /var/lib/toolgate
  toolgate token create --role worker --tool 'ci_*' --workspace default

Signed in, it asks the service for the roles caller, host and worker. With --data, for other roles, or where no one is signed in, it
adds the hash to the table itself; a running service accepts the token at once. That takes write access to the data directory. An
admin gives any role over the service: name --server or --token-file. Only the hash is stored.`;
