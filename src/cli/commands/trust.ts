import type { Command } from "commander";
import { withScreen } from "../command.ts";
import type { CliContext, TrustFlags } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** Defines `toolgate trust`. */
export function defineTrust(command: Command, context: CliContext): void {
  command
    .description(
      "Let the tools in a workspace's .opencode directory run in the service, as their code is now, and its skills be used without asking; review and repeat after each change",
    )
    .argument("[dir]", "the workspace's directory", ".")
    .option("--remove", "trust them no longer")
    .option("--data <dir>", "the service's data directory (default: $XDG_DATA_HOME/toolgate)")
    .option("--config <file>", "the service's configuration")
    .action((dir: string, flags: TrustFlags) =>
      withScreen(context, command, async (screen) => {
        const service = await context.loadService();
        const { directory, tools, plugins, policy, skills } = await service.trustDirectory(dir, flags);
        const trusted = !flags.remove;
        screen.result({ directory, trusted, tools, plugins, policy, skills }, () => [
          `${terminalLine(directory)} is ${trusted ? "trusted" : "no longer trusted"}`,
          ...[...tools, ...plugins, ...policy, ...skills].map((file) => `  ${terminalLine(file)}`),
        ]);
      }),
    );
}
