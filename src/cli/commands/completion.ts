import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Argument, type Command } from "commander";
import { assets } from "../../core/assets.ts";
import { withScreen } from "../command.ts";
import type { CliContext } from "../context.ts";

/** Defines `toolgate completion`, which prints a static script; `npm run generate` writes them. */
export function defineCompletion(command: Command, context: CliContext): void {
  command
    .description("Print a script with which your shell completes commands, options and their values (not ids)")
    .addArgument(new Argument("<shell>", "your shell").choices(["bash", "zsh", "fish"]))
    .addHelpText("after", completionHelp)
    .action((shell: string) =>
      withScreen(context, command, async (screen) => {
        const script = await readFile(join(assets.completionScripts, `toolgate.${shell}`), "utf8");
        screen.write(screen.json ? `${JSON.stringify({ shell, script })}\n` : script);
        return undefined;
      }),
    );
}

const completionHelp = `
Examples:
  source <(toolgate completion bash)             # in ~/.bashrc
  source <(toolgate completion zsh)              # in ~/.zshrc, after compinit
  toolgate completion fish | source              # in ~/.config/fish/config.fish`;
