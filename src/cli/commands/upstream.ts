import type { Command } from "commander";
import { type Source, SourceSchema, SourceStateSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { confirmAtTerminal } from "../terminal/confirm.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { wordOf } from "../view/words.ts";
import { allSources, changeLines, namedSource, sourceLines } from "./sources.ts";

/** Defines `toolgate upstream accept`. */
export function defineUpstream(command: Command, context: CliContext): void {
  command
    .command("accept")
    .description("accept the tools of an MCP server as they are now: models see them from then on")
    .argument("<name>", "the server")
    .option("-y, --yes", "do not ask")
    .action((name: string, { yes = false }: { yes?: boolean }) =>
      withServer(context, command, "approver", async ({ sources: service }, screen) => {
        const source = namedSource(await allSources(service), name);
        if (source.digest === "") throw notListed(source);
        if (!screen.json) for (const line of changeLines(source, screen.paint.out)) screen.write(`${line}\n`);
        if (!yes && !(await confirmAtTerminal(screen.io, `accept these tools of ${name}?`))) return undefined;
        const accepted = await service.acceptSource({ name, digest: source.digest });
        if (accepted.source)
          screen.show(SourceSchema, accepted.source, (paint) => sourceLines(accepted.source ?? source, paint));
        return undefined;
      }),
    );
}

function notListed({ name, state, problem }: Source): CommandError {
  const fact = problem === "" ? wordOf(SourceStateSchema, state) : problem;
  return new CommandError(
    terminalLine(`${name} has not listed its tools yet: ${fact}`),
    `see its state with \`toolgate sources ${terminalLine(name)}\`, correct its table in the configuration, and accept once it lists its tools`,
    exitCodes.failed,
  );
}
