import type { Command } from "commander";
import {
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceSchema,
  SourceState,
  SourceStateSchema,
  type SourceTool,
} from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { countOf } from "../../view/quantities.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { confirmAtTerminal } from "../terminal/confirm.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { diffLines } from "../view/ask-view.ts";
import { momentOf, sizeOf, wordOf } from "../view/words.ts";

/** Defines `toolgate sources`. */
export function defineSources(command: Command, context: CliContext): void {
  command
    .description(
      "list MCP servers and the processes of tool files and plugins, or show one server with what is new or changed",
    )
    .argument("[name]", "the server, or the path of a tool directory or plugin, to show")
    .action((name: string | undefined) =>
      withServer(context, command, "approver", async ({ sources: service }, screen) => {
        const sources = await allSources(service);
        const shown = name === undefined ? sources : namedSources(sources, name);
        for (const source of shown)
          screen.show(SourceSchema, source, (paint) => [
            ...sourceLines(source, paint),
            ...(name === undefined ? [] : changeLines(source, paint)),
          ]);
        if (sources.length === 0)
          screen.note(
            "no MCP server is configured and no tool process was started; add a table [mcp.NAME] to the configuration, or list the tools of a workspace that has tool files",
          );
      }),
    );
}

/** Lists all sources. */
export async function allSources(service: ServerConnection["sources"]): Promise<Source[]> {
  const pages = await Array.fromAsync(pagesOf((page) => service.listSources(page)));
  return pages.flatMap(({ sources }) => sources);
}

/** Finds an MCP server by its name. */
export function namedSource(sources: readonly Source[], name: string): Source {
  const servers = sources.filter(({ kind }) => kind !== SourceKind.TOOL_PROCESS);
  return namedSources(servers, name)[0];
}

/** Finds the sources of a name: tool processes of several workspaces can have the same one. */
function namedSources(sources: readonly Source[], name: string): readonly [Source, ...Source[]] {
  const [first, ...others] = sources.filter((each) => each.name === name);
  if (first) return [first, ...others];
  throw new CommandError(
    `no MCP server or tool process is named ${terminalLine(name)}`,
    `there is ${sources.map((each) => terminalLine(each.name)).join(", ") || "none in the configuration"}`,
    exitCodes.usage,
  );
}

/** Writes a source for people. */
export function sourceLines(source: Source, paint: Paint): string[] {
  const { name, origin, state, since, problem, restarts, memoryBytes, confinement, tools } = source;
  const { kind, workspace, files } = source;
  const isQuiet = state === SourceState.CONNECTING || state === SourceState.IDLE;
  const color = state === SourceState.READY ? "green" : isQuiet ? "dim" : "red";
  const facts = [
    ...(workspace === "" ? [] : [`workspace ${workspace}`]),
    `since ${momentOf(since)}`,
    confinement,
    ...(memoryBytes > 0n ? [sizeOf(Number(memoryBytes))] : []),
    ...(restarts > 0 ? [countOf(restarts, "restart")] : []),
  ];
  return [
    `${paint("bold", terminalLine(name))}  ${paint(color, wordOf(SourceStateSchema, state))}  ${terminalLine(origin)}`,
    `  ${paint("dim", terminalLine(facts.join(", ")))}`,
    ...(problem === "" ? [] : [`  ${paint("red", terminalLine(problem))}`]),
    ...files.filter((file) => file !== name).map((file) => `  ${terminalLine(file)}`),
    ...(kind === SourceKind.TOOL_PROCESS
      ? tools.map((tool) => `  ${paint("green", terminalLine(tool.name))}`)
      : tools.map((tool) => toolLine(tool, paint))),
    ...(isWaiting(source) ? [`  next: toolgate sources ${name}, then toolgate upstream accept ${name}`] : []),
  ];
}

const words: Record<SourceAcceptance, string> = {
  [SourceAcceptance.UNSPECIFIED]: "",
  [SourceAcceptance.ACCEPTED]: "accepted",
  [SourceAcceptance.NEW]: "new",
  [SourceAcceptance.CHANGED]: "changed",
  [SourceAcceptance.GONE]: "not offered any more",
};

function toolLine({ name, acceptance, problem }: SourceTool, paint: Paint): string {
  const isOffered = acceptance === SourceAcceptance.ACCEPTED && problem === "";
  const word = paint(isOffered ? "green" : "yellow", words[acceptance] ?? "");
  return `  ${terminalLine(name)}  ${word}${problem === "" ? "" : `  ${terminalLine(problem)}`}`;
}

const isWaiting = ({ tools }: Source) =>
  tools.some(({ acceptance }) => acceptance === SourceAcceptance.NEW || acceptance === SourceAcceptance.CHANGED);

/** Writes what is offered and not accepted, as differences from what was accepted. */
export function changeLines({ tools }: Source, paint: Paint): string[] {
  return tools.flatMap(({ diff }) => diffLines(diff, paint));
}

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
        if (!yes && !(await confirmAtTerminal(screen.io, `accept these tools of ${name}?`))) return;
        const accepted = await service.acceptSource({ name, digest: source.digest });
        if (accepted.source)
          screen.show(SourceSchema, accepted.source, (paint) => sourceLines(accepted.source ?? source, paint));
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
