import type { Command } from "commander";
import { withScreen } from "../command.ts";

/** What `toolgate trust` works on. */
export interface TrustFlags {
  data?: string;
  config?: string;
  remove?: boolean;
}

/** Says that the code in a folder's `.opencode` may run in the service, or no longer; returns the files of it that are tools. */
export type TrustFolder = (directory: string, flags: TrustFlags) => Promise<{ directory: string; tools: string[] }>;

/** Adds `toolgate trust`. */
export function addTrust(program: Command, trust: TrustFolder): void {
  program
    .command("trust")
    .summary("let a workspace's own tools run in the service")
    .description(
      "Let the tools in a workspace's .opencode folder run in the service, as their code is now; after each change of it look at it and say so again",
    )
    .argument("[dir]", "the workspace's folder", ".")
    .option("--remove", "trust them no longer")
    .option("--data <dir>", "the service's data folder (default: $XDG_DATA_HOME/toolgate)")
    .option("--config <file>", "the service's configuration")
    .action((dir: string, flags: TrustFlags, command: Command) =>
      withScreen(command, async (screen) => {
        const { directory, tools } = await trust(dir, flags);
        if (screen.json) screen.write(`${JSON.stringify({ directory, trusted: !flags.remove, tools })}\n`);
        if (screen.json) return undefined;
        const told = flags.remove ? `${directory} is no longer trusted` : `${directory} is trusted`;
        const lines = [told, ...tools.map((file) => `  ${file}`)];
        screen.write(`${lines.join("\n")}\n`);
        return undefined;
      }),
    );
}
