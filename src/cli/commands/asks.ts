import type { Command } from "commander";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";

/** Defines `toolgate asks`. */
export function defineAsks(command: Command, context: CliContext): void {
  command
    .option("--session <id>", "only those of this session and its descendants")
    .option(
      "--watch",
      "keep printing requests as they are opened and settled, until Ctrl-C; `toolgate inbox` also answers",
    )
    .action((options: { session?: string; watch?: boolean }) =>
      withServer(context, command, "approver", async (server, screen) => {
        // The help does without the messages of the contract.
        const { listAsks, printAsks } = await import("../inbox/print-asks.ts");
        return await (options.watch ? printAsks : listAsks)(server, screen, options.session);
      }),
    );
}
