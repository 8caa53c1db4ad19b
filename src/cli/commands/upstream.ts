import type { Command } from "commander";
import { SourceSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { confirmAtTerminal } from "../terminal/confirm.ts";
import { changeLines, namedSource, sourceLines } from "./sources.ts";

/** Defines `toolgate upstream accept`. */
export function defineUpstream(command: Command, context: CliContext): void {
  command
    .command("accept")
    .description("accept the tools of an MCP server as they are now: models see them from then on")
    .argument("<name>", "the server")
    .option("-y, --yes", "do not ask")
    .action((name: string, { yes = false }: { yes?: boolean }) =>
      withServer(context, command, "approver", async ({ sources: service }, screen) => {
        const source = namedSource((await service.listSources({})).sources, name);
        if (!screen.json) for (const line of changeLines(source, screen.paint.out)) screen.write(`${line}\n`);
        if (!yes && !(await confirmAtTerminal(screen.io, `accept these tools of ${name}?`))) return undefined;
        const accepted = await service.acceptSource({ name, digest: source.digest });
        if (accepted.source)
          screen.show(SourceSchema, accepted.source, (paint) => sourceLines(accepted.source ?? source, paint));
        return undefined;
      }),
    );
}
