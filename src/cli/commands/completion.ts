import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Argument, type Command } from "commander";
import { assets } from "../../core/assets.ts";
import type { CliContext } from "../context.ts";

/** Defines `toolgate completion`, which prints a static script; `npm run generate` writes them. It runs at each start of a shell, so it loads no client. */
export function defineCompletion(command: Command, context: CliContext): void {
  command
    .description("Print a script with which your shell completes commands, options and their values (not ids)")
    .addArgument(new Argument("<shell>", "your shell").choices(["bash", "zsh", "fish"]))
    .addHelpText("after", completionHelp)
    .action(async (shell: string) => {
      const { json } = command.optsWithGlobals<{ json?: boolean }>();
      const script = await readFile(join(assets.completionScripts, `toolgate.${shell}`), "utf8");
      context.io.stdout.write(json ? `${JSON.stringify({ shell, script })}\n` : script);
    });
}

const completionHelp = `
Examples:
  source <(toolgate completion bash)             # in ~/.bashrc
  source <(toolgate completion zsh)              # in ~/.zshrc, after compinit
  toolgate completion fish | source              # in ~/.config/fish/config.fish`;
