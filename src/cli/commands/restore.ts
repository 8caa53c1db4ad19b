import type { Command } from "commander";
import { withScreen } from "../command.ts";
import type { CliContext, RestoredBackup } from "../context.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate restore`. */
export function defineRestore(command: Command, context: CliContext): void {
  command
    .description(
      "Restore a backup into the data directory of a stopped service. What happened after the backup is unknown, so the store gets a new id, open calls end, open permission requests are withdrawn, and grants are suspended until `toolgate grants confirm`",
    )
    .argument("<file>", "the backup")
    .requiredOption("--data <dir>", "the data directory; the store in it is moved aside")
    .action((file: string, { data }: { data: string }) =>
      withScreen(context, command, async (screen) => {
        const service = await context.loadService();
        const restored = await service.restore(file, data);
        if (screen.json) screen.write(`${JSON.stringify(restored)}\n`);
        else for (const line of restoredLines(restored)) screen.write(`${line}\n`);
        return undefined;
      }),
    );
}

function restoredLines({ created, storeId, outputs, calls, grants, before }: RestoredBackup): string[] {
  return [
    `restored the backup of ${momentOf(created)} as the store ${storeId}`,
    `  ${outputs} outputs`,
    `  ${calls} open calls ended with EXECUTOR_LOST; their permission requests were withdrawn`,
    `  ${grants} grants are suspended: start the service, then \`toolgate grants\` and \`toolgate grants confirm\``,
    ...(before === undefined ? [] : [`  the store that was here is in ${before}`]),
  ];
}
