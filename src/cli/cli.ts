import { Command, CommanderError, type Option } from "commander";
import { defaultUrl } from "../client/find-server.ts";
import { commands } from "./commands.ts";
import type { CliContext } from "./context.ts";
import { exitCodes, exitCodesHelp } from "./exit-codes.ts";

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
    .configureHelp({ showGlobalOptions: true })
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
