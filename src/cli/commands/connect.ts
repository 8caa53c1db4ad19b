import { Argument, type Command } from "commander";
import { ConnectorSchema } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { Enforcement } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { agentFacts } from "../../agents/hooks/agent-facts.ts";
import { findPeerProof } from "../../client/find-peer-proof.ts";
import { locateProgram } from "../../core/locate-program.ts";
import { agentPrograms } from "../canary/agent-programs.ts";
import { runCanary } from "../canary/run-canary.ts";
import { collect, type GlobalOptions, refuseCachedProgram, withScreen, withServer } from "../command.ts";
import { hookPrograms, httpHookVariable, mcpCommand } from "../connect/agent-files.ts";
import { type AgentUser, findAgentUser } from "../connect/agent-user.ts";
import { allConnectors, checkConnector, problemsOfOwner } from "../connect/check-connector.ts";
import { alreadyConnected, type ConnectorOptions, makeConnector, planConnector } from "../connect/connect-agent.ts";
import { diffOf } from "../connect/file-change.ts";
import { findProjectPlugins, notAccepted } from "../connect/project-plugins.ts";
import {
  type AgentKind,
  agentKinds,
  type CanaryResult,
  type ConnectRecord,
  readRecord,
  readSystemRecord,
  systemFilesOf,
  writeRecord,
} from "../connect/record.ts";
import { canaryLines, enforcementLine, enforcementWord, faultLine } from "../connect/show.ts";
import { connectServer, findLocalToken, findServerToken, type ServerConnection } from "../connection/connection.ts";
import { readCertificates, serverUrl } from "../connection/server-address.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { commandFailure } from "../failure/failure.ts";
import { confirmAtTerminal } from "../terminal/confirm.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** Options of `toolgate connect`. */
interface ConnectFlags extends GlobalOptions {
  check?: boolean;
  list?: boolean;
  yes?: boolean;
  user?: string;
  workspace: string[];
  agentProgram?: string;
  canary: boolean;
  httpHook?: boolean;
  system?: boolean;
  acceptPlugins?: boolean;
}

/** Defines `toolgate connect`. */
export function defineConnect(command: Command, context: CliContext): void {
  command
    .description(
      "Let an agent of another program ask here before it uses its tools, and give it the tools of the service",
    )
    .addArgument(new Argument("[agent]", "the kind of agent").choices(agentKinds))
    .option("--check", "verify what was connected: files, service, tokens and the agent's native tools")
    .option("--list", "list the connectors that the service knows")
    .option("--yes", "write the files without a question")
    .option("--user <name>", "the user as which the agent runs; only for root (default: yourself)")
    .option("--workspace <name>", "a workspace root in which it may ask (repeatable; default: all)", collect, [])
    .option("--agent-program <file>", "the agent's program for the canary (default: the one in PATH)")
    .option("--no-canary", "do not run the agent to see which of its tools ask")
    .option(
      "--http-hook",
      "claude only: it sends requests instead of running our command, and cannot verify the service",
    )
    .option(
      "--system",
      "claude, codex and gemini, as root: write the hooks into the settings of the machine, for all its users",
    )
    .option("--accept-plugins", "opencode only: accept the plugins and tools of the project here, as they are now")
    .addHelpText("after", connectHelp)
    .action((kind: AgentKind | undefined, _: unknown, self: Command) => {
      const flags = self.optsWithGlobals<ConnectFlags>();
      if (flags.list) return withServer(context, self, "approver", (server, screen) => listConnectors(server, screen));
      if (flags.acceptPlugins) return acceptPlugins(context, self, kind, flags);
      if (flags.check) return checkAll(context, self, kind, flags);
      return withServer(context, self, "approver", (server, screen) =>
        connectAgent(context, server, screen, { kind, flags }),
      );
    });
}

async function listConnectors(server: ServerConnection, screen: Screen): Promise<void> {
  const connectors = await allConnectors(server);
  for (const connector of connectors)
    screen.show(ConnectorSchema, connector, (paint) => [
      `${paint("bold", terminalLine(connector.id))}  ${terminalLine(`${connector.kind} of ${connector.place}`)}`,
      `  ${enforcementLine(connector.enforcement, paint)}`,
    ]);
  if (connectors.length === 0) screen.note("no agent is connected");
}

async function connectAgent(
  { program }: CliContext,
  approver: ServerConnection,
  screen: Screen,
  { kind, flags }: { kind: AgentKind | undefined; flags: ConnectFlags },
): Promise<number> {
  if (kind === undefined)
    throw new UsageError("no agent is named", `name one: toolgate connect ${agentKinds.join("|")}`);
  if (flags.httpHook && kind !== "claude") throw new UsageError("--http-hook is for claude", "leave it out");
  if (flags.system) checkSystemLevel(kind, flags, program);
  const user = findAgentUser(flags.user, screen.io);
  const before = readRecord(kind, user);
  if (before !== undefined) throw alreadyConnected(before);
  refuseCachedProgram(program, `connect ${kind}`);
  await checkCanApprove(approver);
  const { env } = screen.io;
  const proof = await findPeerProof(approver.url, readCertificates(flags, env));
  const ca = flags.ca ?? (env.TOOLGATE_CA || undefined);
  const { workspace: workspaces, httpHook: isHttpHook = false, system: isSystem = false } = flags;
  const agentProgram = kind === "codex" ? requireProgram(flags, user) : undefined;
  const options: ConnectorOptions = {
    ...{ kind, user, approver, proof, program, ca, workspaces, isHttpHook, isSystem, agentProgram },
  };
  const planned = planConnector(options);
  const secrets = planned.tokens.map(({ file }) =>
    diffOf({ path: file, before: undefined, after: "", isSecret: true }),
  );
  for (const text of [...planned.changes.map(diffOf), ...secrets]) screen.note(text.trimEnd());
  for (const { keyPath, value } of planned.codex)
    screen.note(`codex writes into its configuration: ${terminalLine(`${keyPath} = ${JSON.stringify(value)}`)}`);
  if (planned.codex.length > 0) screen.note("codex then trusts the hooks above, which it would skip otherwise");
  if (isSystem) screen.alert(systemNotice(kind, user));
  if (!flags.yes && !(await confirmAtTerminal(screen.io, "write these changes?"))) return exitCodes.cancelled;
  const { record, enforcement } = await makeConnector(options, planned);
  const canary = await canaryOf(record, { user, approver, screen, flags });
  if (canary !== undefined) writeRecord(kind, user, { ...record, canary });
  const entry = kind === "mcp" ? mcpEntry(options, record) : undefined;
  report(screen, { record, enforcement, canary, problems: [] }, entry);
  if (entry !== undefined && !screen.json) {
    screen.note("add this to the configuration of the MCP client:");
    screen.write(`${JSON.stringify(entry, null, 2)}\n`);
  }
  if (entry === undefined)
    screen.note(
      `start ${kind} in a directory of a workspace: what it asks is at ${approver.url} and in \`toolgate inbox\``,
    );
  if (isHttpHook) screen.note(`start it with its token: export ${httpHookVariable}="$(cat ${record.tokenFile})"`);
  return hasPassed(canary) ? exitCodes.ok : exitCodes.failed;
}

/** Refuses `--system` where the agent has no such level, for others than root, and a second time. */
function checkSystemLevel(kind: AgentKind, { httpHook }: ConnectFlags, program: readonly string[]): void {
  if (agentFacts[kind]?.machineSettings === undefined)
    throw new UsageError(
      "--system is for claude, codex and gemini",
      `${kind} reads no hooks of the machine: leave it out`,
    );
  if (httpHook) throw new UsageError("--system and --http-hook exclude each other", "leave out --http-hook");
  if (process.geteuid?.() !== 0)
    throw new UsageError("only root can write the settings of the machine", "run it with sudo");
  const [open] = hookPrograms(program).flatMap(problemsOfOwner);
  if (open !== undefined)
    throw new CommandError(
      `${terminalLine(open)}, and the hooks of the machine would run what is there`,
      "install Toolgate as root, such as with `sudo npm install --global`, and connect with that one",
      exitCodes.failed,
    );
  const other = readSystemRecord(kind)?.user;
  if (other === undefined) return;
  throw new CommandError(
    `${kind} of user ${other} is connected by the settings of this machine, which hold one connector`,
    `check it with \`toolgate connect --check ${kind} --user ${other}\`, or disconnect it first`,
    exitCodes.failed,
  );
}

/** Finds the program of Codex, which has to trust its hooks itself. */
function requireProgram({ agentProgram: named = "codex" }: ConnectFlags, { env }: AgentUser): string {
  const program = locateProgram(named, env.PATH);
  if (program !== undefined) return program;
  throw new UsageError(
    `${named} is not a program in PATH, and only Codex itself can trust our hooks: it skips others`,
    "install Codex, or name it with --agent-program FILE",
  );
}

/** Says what the settings of the machine change for its other users. */
function systemNotice(kind: AgentKind, { name }: AgentUser): string {
  const { name: agent = kind, machineSettings = "" } = agentFacts[kind] ?? {};
  const ours = kind === "codex" ? "allow_managed_hooks_only" : "allowManagedHooksOnly";
  const others =
    kind === "gemini"
      ? "hooks of all other people run although they switched them off"
      : `${ours} turns off the hooks of all other people, projects and plugins`;
  return `${machineSettings} holds for everyone on this machine: ${others}, and ${agent} of users other than ${name} can use no tool, since they cannot read the token of ${name}`;
}

/** Refuses a token that is not valid or cannot create those of the agent, before a person reads what would change. */
async function checkCanApprove({ tools, tokenSource }: ServerConnection): Promise<void> {
  const { roles } = await tools.getServerInfo({});
  if (roles.some((role) => role === "approver" || role === "admin")) return;
  throw new CommandError(
    `connecting an agent needs the role approver or admin; this token has ${terminalLine(roles.join(", "))}`,
    `${tokenSource}; sign in with \`toolgate login\`, or name another token with --token-file FILE`,
    exitCodes.unreachable,
  );
}

/** Returns the entry for the configuration of any MCP client. */
function mcpEntry(
  { program, approver, ca }: ConnectorOptions,
  { mcpName, tokenFile: mcpTokenFile }: ConnectRecord,
): { mcpServers: Record<string, { command: string; args: string[] }> } {
  const [command = "", ...args] = mcpCommand({ program, server: approver.url, ca, mcpTokenFile });
  return { mcpServers: { [mcpName]: { command, args } } };
}

/** Runs the canary of a connected agent; undefined if it cannot be run. */
async function canaryOf(
  { kind, mcpName, credentials }: ConnectRecord,
  {
    user,
    approver,
    screen,
    flags,
  }: { user: AgentUser; approver: ServerConnection; screen: Screen; flags: ConnectFlags },
): Promise<CanaryResult | undefined> {
  if (kind === "mcp" || !flags.canary) return undefined;
  const agent = agentPrograms[kind];
  const program = locateProgram(flags.agentProgram ?? agent.name, user.env.PATH);
  if (program === undefined) {
    screen.note(
      `the canary did not run: ${flags.agentProgram ?? agent.name} is not a program in PATH; name it with --agent-program FILE`,
    );
    return undefined;
  }
  screen.note(`running ${program} against a mock model, to see which of its tools ask …`);
  const principal = credentials[0]?.id ?? "";
  const isSystem = systemFilesOf(kind, user).length > 0;
  try {
    return await runCanary({ agent, program, user, mcpName, principal, approver, directory: process.cwd(), isSystem });
  } catch (error) {
    const fact = error instanceof Error ? error.message : String(error);
    screen.note(`the canary did not run: ${terminalLine(fact)}; run the command in a directory of a workspace`);
    return undefined;
  }
}

/** True if a canary, where one ran, came to its end and found no tool that runs unasked. */
function hasPassed({ problem, rows }: Pick<CanaryResult, "problem" | "rows"> = { problem: "", rows: [] }): boolean {
  return problem === "" && rows.every(({ result }) => result !== "runs unasked");
}

/** Records the code of the present project that opencode may load. */
async function acceptPlugins(
  context: CliContext,
  command: Command,
  kind: AgentKind | undefined,
  flags: ConnectFlags,
): Promise<void> {
  await withScreen(context, command, async (screen) => {
    const user = findAgentUser(flags.user, screen.io);
    const record = kind === "opencode" ? readRecord(kind, user) : undefined;
    if (record === undefined)
      throw new UsageError("--accept-plugins is for opencode after `toolgate connect opencode`", "connect it first");
    const found = findProjectPlugins({ directory: process.cwd(), root: "/", home: user.home });
    const files = notAccepted(found, record.accepted);
    if (files.length === 0) {
      screen.note("opencode loads no code of this project that was not accepted");
      return exitCodes.ok;
    }
    for (const file of files) screen.note(`opencode loads ${terminalLine(file)} of this project, with your rights`);
    if (!flags.yes && !(await confirmAtTerminal(screen.io, "accept it as it is now?"))) return exitCodes.cancelled;
    writeRecord(record.kind, user, { ...record, accepted: { ...record.accepted, ...found } });
    return exitCodes.ok;
  });
}

/** Checks the named kind, or all that are connected. */
async function checkAll(
  context: CliContext,
  command: Command,
  kind: AgentKind | undefined,
  flags: ConnectFlags,
): Promise<void> {
  await withScreen(context, command, async (screen) => {
    const user = findAgentUser(flags.user, screen.io);
    const kinds = kind === undefined ? agentKinds : [kind];
    const records = kinds.flatMap((each) => readRecord(each, user) ?? []);
    if (records.length === 0)
      throw new UsageError(
        `${kind ?? "no agent"} is ${kind ? "not " : ""}connected`,
        `connect it: toolgate connect ${kind ?? agentKinds.join("|")}`,
      );
    let exitCode: number = exitCodes.ok;
    for (const record of records) if (!(await checkOne(record, { user, screen, flags }))) exitCode = exitCodes.failed;
    return exitCode;
  });
}

async function checkOne(
  record: ConnectRecord,
  { user, screen, flags }: { user: AgentUser; screen: Screen; flags: ConnectFlags },
): Promise<boolean> {
  const { env } = screen.io;
  const certificates = readCertificates({ ...flags, ...(record.ca !== undefined && { ca: record.ca }) }, env);
  // The record belongs to the agent's user: a token that is named goes only to a server that is named, by certificates that are.
  const server = serverUrl({ server: record.server }, env);
  const isNamed = serverUrl(flags, env) === server;
  const token = isNamed ? findServerToken("approver", flags, env) : findLocalToken("approver", server, env);
  const approver = token.value === undefined ? undefined : connectServer(server, token, readCertificates(flags, env));
  const isUnused = !isNamed && [flags.token, flags.tokenFile, env.TOOLGATE_TOKEN].some(Boolean);
  try {
    const { problems: found, enforcement } = await checkConnector(record, {
      ...{ user, approver, certificates, directory: process.cwd() },
    });
    const unused = `${record.kind} is connected to ${server}, which did not get your token: add --server ${server}`;
    const problems = isUnused ? [...found, unused] : found;
    const isUsable = approver !== undefined && problems.length === 0;
    const canary = isUsable ? await canaryOf(record, { user, approver, screen, flags }) : undefined;
    if (canary !== undefined) writeRecord(record.kind, user, { ...record, canary });
    // What an earlier canary found does not hold where something has changed since.
    const known = problems.length === 0 ? (canary ?? record.canary) : undefined;
    report(screen, { record, enforcement, canary: known, problems });
    return problems.length === 0 && hasPassed(canary);
  } catch (error) {
    screen.fail(commandFailure(error, approver));
    return false;
  } finally {
    approver?.close();
  }
}

function report(
  screen: Screen,
  {
    record: { kind, server, files, mcpName },
    enforcement,
    canary,
    problems,
  }: {
    record: ConnectRecord;
    enforcement: Enforcement | undefined;
    canary: CanaryResult | undefined;
    problems: readonly string[];
  },
  entry?: ReturnType<typeof mcpEntry>,
): void {
  const found = { state: enforcementWord(enforcement), reason: enforcement?.reason ?? "" };
  const paths = files.map(({ path }) => path);
  const { version, runsAfter } = agentFacts[kind] ?? {};
  const measured = version === undefined ? undefined : { version, runsAfter };
  const whole = { kind, server, mcpName, files: paths, enforcement: found, problems, canary, measured, ...entry };
  screen.result(whole, (paint) => [
    `${paint("bold", kind)} asks at ${terminalLine(server)}`,
    enforcementLine(enforcement, paint),
    ...problems.map((problem) => `${paint("red", "problem")}  ${terminalLine(problem)}`),
    ...(kind === "mcp" ? [] : canaryLines(canary, paint)),
    ...faultLine(kind, paint),
  ]);
}

const connectHelp = `
Examples:
  toolgate connect claude                  shows the changes as a diff, then asks
  toolgate connect opencode --yes
  toolgate connect codex --agent-program /opt/codex/bin/codex
  toolgate connect mcp                     prints the entry for any MCP client
  sudo toolgate connect claude --system --user ann --token-file /root/approver.token
  toolgate connect --check

It needs a sign-in or token that can approve. Where the agent's own user can approve, the approvals are only advisory: then run it
as root with --user.`;
