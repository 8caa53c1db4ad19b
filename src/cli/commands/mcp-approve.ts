import { Argument, type Command } from "commander";
import { serveMcpOverStdio } from "../../mcp/serve-stdio.ts";
import { withScreen } from "../command.ts";
import type { CliContext } from "../context.ts";
import { type ApproveOptions, approveServers } from "../hook/approve-server.ts";
import { wholeNumber } from "./call.ts";

/** Defines `toolgate mcp-approve`. */
export function defineMcpApprove(command: Command, context: CliContext): void {
  command
    .description(
      "Answer the permission prompts of an agent that has no hooks: an MCP server over stdin and stdout with the tool `approve`; every failure refuses",
    )
    .addArgument(new Argument("<agent>", "the kind of agent").choices(["claude"]))
    .option("--uid <number>", "the user that owns the service's socket on this machine", wholeNumber)
    .option("--certificate <sha256>", "the SHA-256 of the certificate of an https service")
    .option("--timeout <seconds>", "the maximum time that a prompt waits", wholeNumber, 1_500)
    .addHelpText("after", approveHelp)
    .action(() =>
      withScreen(context, command, async () => {
        await serveMcpOverStdio(approveServers(context, command.optsWithGlobals<ApproveOptions>()), context.io);
        return undefined;
      }),
    );
}

const approveHelp = `
Example:
  claude -p "…" --mcp-config '{"mcpServers":{"toolgate":{"command":"toolgate","args":["mcp-approve","claude",
    "--server","http://127.0.0.1:7420","--token-file","/home/ann/.toolgate-host","--uid","999"]}}}' \\
    --strict-mcp-config --permission-prompt-tool mcp__toolgate__approve

Claude Code asks only for what its own rules leave open. With the hooks of \`toolgate connect claude\` it asks for every tool.`;
