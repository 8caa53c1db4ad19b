import { Command, type CommanderError, Option } from "commander";
import { addAsks } from "./commands/asks.ts";
import { addAudit } from "./commands/audit.ts";
import { addCall } from "./commands/call.ts";
import { addCheckConfig, type CheckedConfig } from "./commands/check-config.ts";
import { addCompletion } from "./commands/completion.ts";
import { addExplain, addPlan } from "./commands/explain.ts";
import { addGrants } from "./commands/grants.ts";
import { addOutput } from "./commands/output.ts";
import { addReject } from "./commands/reject.ts";
import { addReply } from "./commands/reply.ts";
import { addRules } from "./commands/rules.ts";
import { addRun, type Embedded, type EmbedFlags } from "./commands/run.ts";
import { addServe, type Served, type ServeFlags } from "./commands/serve.ts";
import { addStats } from "./commands/stats.ts";
import { addTools } from "./commands/tools.ts";
import { addTop } from "./commands/top.ts";
import { addTrust, type TrustFolder } from "./commands/trust.ts";
import { addWatch } from "./commands/watch.ts";
import { defaultUrl } from "./connection.ts";
import { exitCodes, exitCodesHelp } from "./exit-codes.ts";
import { addInbox } from "./inbox/inbox.ts";

export type { CheckedConfig } from "./commands/check-config.ts";
export type { Embedded, EmbedFlags } from "./commands/run.ts";
export type { Served, ServeFlags } from "./commands/serve.ts";
export type { TrustFlags } from "./commands/trust.ts";

/** What the command line needs of the rest of the program. */
export interface CliParts {
  /** Serves until the process is told to stop; tells when it does. */
  serve(flags: ServeFlags, onStart: (served: Served) => void): Promise<void>;
  /** Starts an engine for this process alone, with a store that ends with it. */
  embed(flags: EmbedFlags): Promise<Embedded>;
  /** Checks a configuration file; without a name the one that a server would read. */
  checkConfig(file?: string): Promise<CheckedConfig>;
  trust: TrustFolder;
  version: string;
}

/** The whole command line; `parseAsync` runs one command, prints its errors and sets the exit code. */
export function cli({ serve, embed, trust, checkConfig, version }: CliParts): Command {
  const program = new Command("toolgate")
    .description("Runs tools for AI agents: policy, people, record.")
    .version(version)
    .addOption(new Option("--server <url>", "the server").env("TOOLGATE_URL").default(defaultUrl))
    .addOption(
      new Option("--token <token>", "your token; a file is safer: others can see command lines").env("TOOLGATE_TOKEN"),
    )
    .option(
      "--token-file <file>",
      "a file with your token (default: tokens/caller or tokens/approver of the local data folder)",
    )
    .addOption(
      new Option("--ca <file>", "the authority to trust for an https server instead of the public ones, PEM").env(
        "TOOLGATE_CA",
      ),
    )
    .addOption(
      new Option("--cert <file>", "your client certificate, if the server wants one, PEM").env("TOOLGATE_CERT"),
    )
    .addOption(new Option("--key <file>", "its private key, PEM").env("TOOLGATE_KEY"))
    .option("--json", "write one JSON object (proto JSON) per line to stdout, and nothing else there")
    .configureHelp({ showGlobalOptions: true })
    .showHelpAfterError("  next: add --help to see the arguments, options and examples")
    .exitOverride(exitWith)
    .addHelpText("after", `${examples}\n${exitCodesHelp}`);
  process.stdout.on("error", endIfReaderLeft);
  addServe(program, serve);
  addCall(program);
  addRun(program, embed);
  addCheckConfig(program, checkConfig);
  addTrust(program, trust);
  for (const add of [
    addInbox,
    addTop,
    addAsks,
    addReply,
    addReject,
    addGrants,
    addWatch,
    addOutput,
    addTools,
    addPlan,
    addExplain,
    addRules,
    addStats,
    addAudit,
    addCompletion,
  ])
    add(program);
  return program;
}

const examples = `
Examples:
  toolgate serve
  toolgate call read '{"filePath": "README.md"}'
  toolgate asks --server https://tools.example:7420 --ca ca.pem --token-file ~/.toolgate-token`;

function exitWith({ exitCode }: CommanderError): never {
  process.exit(exitCode === 0 ? exitCodes.ok : exitCodes.usage);
}

/** `toolgate … | head`: who reads our output has enough. */
function endIfReaderLeft(error: NodeJS.ErrnoException): void {
  if (error.code === "EPIPE") process.exit(exitCodes.ok);
  throw error;
}
