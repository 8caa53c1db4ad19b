import type { Command } from "commander";
import { shellCommand } from "../../view/words.ts";
import { collect, withScreen } from "../command.ts";
import type { CliContext } from "../context.ts";
import { giveAccess, installService } from "../install/install-service.ts";
import { nextSteps } from "../install/service-files.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

interface InstallFlags {
  workspace: string[];
  root?: string;
  yes?: boolean;
}

/** Defines `toolgate install`. */
export function defineInstall(command: Command, context: CliContext): void {
  command
    .description(
      "Install the service as a systemd unit with its own user, so that agents of other users cannot change it",
    )
    .option("--workspace <dir>", "a directory that tools work in (repeatable; default: the current one)", collect, [])
    .option("--yes", "also run the commands that give the service access to the workspaces")
    .option("--root <dir>", "write the files into this directory instead of /, and run nothing")
    .addHelpText("after", installHelp)
    .action(({ workspace, root, yes = false }: InstallFlags) =>
      withScreen(context, command, async (screen) => {
        const directories = workspace.length === 0 ? [process.cwd()] : workspace;
        const { written, kept, access } = installService({ program: context.program, directories, root });
        if (yes && root === undefined) giveAccess(access);
        if (screen.json) {
          screen.write(`${JSON.stringify({ written, kept, access, next: nextSteps() })}\n`);
          return undefined;
        }
        const isGiven = yes && root === undefined;
        const lines = [
          ...written.map((path) => `wrote ${path}`),
          ...kept.map((path) => `${path} exists, and stays as it is`),
          isGiven
            ? "access of the service to the workspaces, given:"
            : "access of the service to the workspaces, to run:",
          ...access.map((words) => `  ${shellCommand(words)}`),
          "next:",
          ...nextSteps().map((line) => `  ${line}`),
        ];
        for (const line of lines)
          screen.write(`${terminalSafe(line)}
`);
        return undefined;
      }),
    );
}

const installHelp = `
Examples:
  sudo toolgate install --workspace /home/ann/shop --yes
  toolgate install --root /tmp/image --workspace /srv/shop      for an image; nothing runs

Without ACLs agents that use their own tools still ask here; the service's own tools cannot write.`;
