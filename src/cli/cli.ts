import { Command, CommanderError, Help, type Option } from "commander";
import { defaultUrl } from "../client/find-server.ts";
import type { CliContext } from "./context.ts";
import { exitCodes, exitCodesHelp } from "./failure/command-error.ts";

/** Runs one command line to its end, prints its errors, and returns the exit code. */
export async function runCli(args: readonly string[], context: Omit<CliContext, "setExitCode">): Promise<number> {
  let exitCode: number = exitCodes.ok;
  const whole: CliContext = {
    ...context,
    setExitCode: (code) => {
      exitCode = code;
    },
  };
  const program = await createProgram(whole, (name, global) => name === commandIn(args, global));
  try {
    await program.parseAsync(args, { from: "user" });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return error.exitCode === 0 ? exitCodes.ok : exitCodes.usage;
  }
  return exitCode;
}

/** Builds the command line; of a command for which `isNeeded` is false it has only the name and the summary. */
export async function createProgram(
  context: CliContext,
  isNeeded: (name: string, global: readonly Option[]) => boolean,
): Promise<Command> {
  const { stdout, stderr } = context.io;
  const program = new Command("toolgate")
    .description("Runs tools for AI agents: policy, people, record.")
    .version(context.version)
    .option("--server <url>", `the server (default: TOOLGATE_URL, else ${defaultUrl})`)
    .option("--token <token>", "your token; others can see command lines, so TOOLGATE_TOKEN or a file is safer")
    .option(
      "--token-file <file>",
      "a file with your token (default: of approvers the one of `toolgate login`, of callers tokens/caller of the local data directory)",
    )
    .option(
      "--ca <file>",
      "the authority to trust for an https server instead of the public ones, PEM (or TOOLGATE_CA)",
    )
    .option("--cert <file>", "your client certificate, if the server requires one, PEM (or TOOLGATE_CERT)")
    .option("--key <file>", "its private key, PEM (or TOOLGATE_KEY)")
    .option("--json", "write one JSON object (proto JSON) per line to stdout, and nothing else there")
    .configureHelp({
      showGlobalOptions: true,
      // The words of an option that is repeatable have its default.
      optionDescription: (option) => new Help().optionDescription(option).replace(" (default: [])", ""),
    })
    .configureOutput({
      writeOut: (text) => stdout.write(text),
      writeErr: (text) => stderr.write(text),
      getOutHelpWidth: () => stdout.columns ?? 80,
      getErrHelpWidth: () => stderr.columns ?? 80,
      getOutHasColors: () => stdout.hasColors?.() ?? false,
      getErrHasColors: () => stderr.hasColors?.() ?? false,
    })
    .showHelpAfterError("  next: add --help to see the arguments, options and examples")
    .exitOverride()
    .addHelpText("after", `${examples}\n${exitCodesHelp}`);
  for (const { name, summary, load } of commands) {
    const command = program.command(name).summary(summary).description(summary);
    if (isNeeded(name, program.options)) (await load())(command, context);
  }
  return program;
}

/** The command that a command line names: its first word that is no option and no option's value. */
function commandIn(args: readonly string[], global: readonly Option[]): string | undefined {
  const withValue = new Set(global.filter(({ required }) => required).map(({ long }) => long));
  const words = args.filter((word, i) => !word.startsWith("-") && !withValue.has(args[i - 1]));
  return words[0] === "help" ? words[1] : words[0];
}

const examples = `
Examples:
  toolgate serve
  toolgate call read '{"filePath": "README.md"}'
  toolgate asks --server https://tools.example:7420 --ca ca.pem --token-file ~/.toolgate-token`;

/** Adds a command's description, arguments, options and action. */
type DefineCommand = (command: Command, context: CliContext) => void;

/** A command as the program's help lists it. Its module is imported only to run it or to print its own help. */
interface CommandEntry {
  name: string;
  summary: string;
  load(): Promise<DefineCommand>;
}

/** All commands, in the order of the help. */
export const commands: readonly CommandEntry[] = [
  {
    name: "serve",
    summary: "start the service",
    load: async () => (await import("./commands/serve.ts")).defineServe,
  },
  {
    name: "init",
    summary: "write a configuration, with a preset of rules",
    load: async () => (await import("./commands/init.ts")).defineInit,
  },
  {
    name: "setup",
    summary: "from a fresh install to a phone that approves",
    load: async () => (await import("./commands/setup.ts")).defineSetup,
  },
  {
    name: "install",
    summary: "install the service as a systemd unit with its own user",
    load: async () => (await import("./commands/install.ts")).defineInstall,
  },
  {
    name: "demo",
    summary: "show an agent that asks, and answer it yourself",
    load: async () => (await import("./commands/demo.ts")).defineDemo,
  },
  {
    name: "call",
    summary: "run a tool on a server",
    load: async () => (await import("./commands/call.ts")).defineCall,
  },
  {
    name: "run",
    summary: "run a tool here, without a server",
    load: async () => (await import("./commands/run.ts")).defineRun,
  },
  {
    name: "mcp",
    summary: "serve the tools of a server to an MCP client, over stdio",
    load: async () => (await import("./commands/mcp.ts")).defineMcp,
  },
  {
    name: "check-config",
    summary: "check a configuration without starting anything",
    load: async () => (await import("./commands/check-config.ts")).defineCheckConfig,
  },
  {
    name: "trust",
    summary: "let a workspace's own tools run in the service",
    load: async () => (await import("./commands/trust.ts")).defineTrust,
  },
  {
    name: "login",
    summary: "sign this terminal in as an approver, or get a code for another device",
    load: async () => (await import("./commands/login.ts")).defineLogin,
  },
  {
    name: "logout",
    summary: "sign this terminal out",
    load: async () => (await import("./commands/login.ts")).defineLogout,
  },
  {
    name: "people",
    summary: "list who signed in, invite a person, or revoke one",
    load: async () => (await import("./commands/people.ts")).definePeople,
  },
  {
    name: "channel",
    summary: "list the channels that reach people, or test one",
    load: async () => (await import("./commands/channel.ts")).defineChannel,
  },
  {
    name: "token",
    summary: "create, list and revoke tokens",
    load: async () => (await import("./commands/token.ts")).defineToken,
  },
  {
    name: "connect",
    summary: "let Claude Code, opencode or an MCP client ask here",
    load: async () => (await import("./commands/connect.ts")).defineConnect,
  },
  {
    name: "claude",
    summary: "run `claude -p`, and resume it after each decision that takes long",
    load: async () => (await import("./commands/claude.ts")).defineClaude,
  },
  {
    name: "disconnect",
    summary: "remove what `connect` wrote for an agent",
    load: async () => (await import("./commands/disconnect.ts")).defineDisconnect,
  },
  {
    name: "inbox",
    summary: "show open permission requests live, and answer them",
    load: async () => (await import("./commands/inbox.ts")).defineInbox,
  },
  {
    name: "asks",
    summary: "list open permission requests",
    load: async () => (await import("./commands/asks.ts")).defineAsks,
  },
  {
    name: "reply",
    summary: "answer a permission request; the first answer wins",
    load: async () => (await import("./commands/reply.ts")).defineReply,
  },
  {
    name: "reject",
    summary: "reject all open permission requests of a session and its descendants",
    load: async () => (await import("./commands/reply.ts")).defineReject,
  },
  {
    name: "stop",
    summary: "let no call of an agent, of a session or of all start, and end what runs",
    load: async () => (await import("./commands/stop.ts")).defineStop,
  },
  {
    name: "resume",
    summary: "let calls start again that `stop` stopped",
    load: async () => (await import("./commands/stop.ts")).defineResume,
  },
  {
    name: "grants",
    summary: 'list what was approved with "always"',
    load: async () => (await import("./commands/grants.ts")).defineGrants,
  },
  {
    name: "watch",
    summary: "follow the events of a session",
    load: async () => (await import("./commands/watch.ts")).defineWatch,
  },
  {
    name: "output",
    summary: "fetch a whole output or attachment",
    load: async () => (await import("./commands/output.ts")).defineOutput,
  },
  {
    name: "tools",
    summary: "list the tools, or show one with its fields",
    load: async () => (await import("./commands/tools.ts")).defineTools,
  },
  {
    name: "sources",
    summary: "list MCP servers and tool processes with their tools, or show one",
    load: async () => (await import("./commands/sources.ts")).defineSources,
  },
  {
    name: "workers",
    summary: "list the worker processes that bring tools",
    load: async () => (await import("./commands/workers.ts")).defineWorkers,
  },
  {
    name: "doctor",
    summary: "check a running service, each problem with its next step",
    load: async () => (await import("./commands/doctor.ts")).defineDoctor,
  },
  {
    name: "upstream",
    summary: "accept the tools of an MCP server",
    load: async () => (await import("./commands/sources.ts")).defineUpstream,
  },
  {
    name: "plan",
    summary: "show what a call would do and ask, without running it",
    load: async () => (await import("./commands/plan.ts")).definePlan,
  },
  {
    name: "explain",
    summary: "show which rule decides for patterns",
    load: async () => (await import("./commands/rules.ts")).defineExplain,
  },
  {
    name: "rules",
    summary: "show every rule in effect, list by list",
    load: async () => (await import("./commands/rules.ts")).defineRules,
  },
  {
    name: "stats",
    summary: "show call counts and durations by tool",
    load: async () => (await import("./commands/stats.ts")).defineStats,
  },
  {
    name: "simulate",
    summary: "try rules on recorded calls, and show which decisions would change",
    load: async () => (await import("./commands/simulate.ts")).defineSimulate,
  },
  {
    name: "suggest",
    summary: "print rules for what people approve again and again",
    load: async () => (await import("./commands/suggest.ts")).defineSuggest,
  },
  {
    name: "audit",
    summary: "export or verify the audit: every decision, in chains of hashes",
    load: async () => (await import("./commands/audit.ts")).defineAudit,
  },
  {
    name: "hook",
    summary: "answer a hook of an agent that asks here; `toolgate connect` writes it",
    load: async () => (await import("./commands/hook.ts")).defineHook,
  },
  {
    name: "mcp-approve",
    summary: "answer the permission prompts of `claude -p`, as an MCP server",
    load: async () => (await import("./commands/mcp-approve.ts")).defineMcpApprove,
  },
  {
    name: "backup",
    summary: "write a backup of a running service to a file",
    load: async () => (await import("./commands/backup.ts")).defineBackup,
  },
  {
    name: "upgrade",
    summary: "say what this version changes for a service of an earlier one",
    load: async () => (await import("./commands/upgrade.ts")).defineUpgrade,
  },
  {
    name: "restore",
    summary: "restore a backup into the data directory of a stopped service",
    load: async () => (await import("./commands/backup.ts")).defineRestore,
  },
  {
    name: "completion",
    summary: "print a completion script for your shell",
    load: async () => (await import("./commands/completion.ts")).defineCompletion,
  },
];
