import { Argument, type Command } from "commander";
import { wholeNumber } from "../command.ts";
import { type HookKindName, type HookOptions, hookKinds, hookTimeout, runHook } from "../hook/run-hook.ts";

/** Defines `toolgate hook`. */
export function defineHook(command: Command): void {
  command
    .description("Answer a hook of an agent: its JSON on stdin, the decision on stdout; every failure refuses")
    .addArgument(new Argument("<agent>", "the kind of agent").choices(hookKinds))
    .option("--uid <number>", "the user that owns the service's socket on this machine", wholeNumber)
    .option("--certificate <sha256>", "the SHA-256 of the certificate of an https service")
    .option("--mcp <name>", "the name under which the agent knows the MCP server of Toolgate")
    .option(
      "--timeout <seconds>",
      "the agent's limit for the hook; the answer comes 5 s earlier",
      wholeNumber,
      hookTimeout,
    )
    .addHelpText("after", hookHelp)
    .action((agent: HookKindName) => runHook(agent, command.optsWithGlobals<HookOptions>(), process));
}

const hookHelp = `
\`toolgate connect\` writes a program that does the same, and starts sooner, into the configuration of the agent, with the server, the file of
the token and the proof of the service: it reads them from its options only, since a project may set the environment of hooks. It verifies
the service before it sends anything. On every failure it prints the agent's own refusal and exits with 2, which blocks the tool.`;
