import type { Command } from "commander";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Answering } from "../asking.ts";
import { newClientId, withScreen } from "../command.ts";
import { connectServer, type ServerConnection } from "../connection.ts";
import { execute } from "../execute.ts";
import { commandFailure } from "../failure.ts";
import { answeringAtTerminal, hasTerminal, promptHelp } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { type CallOptions, readCall, wholeNumber } from "./call.ts";

/** What an embedded engine is started with. */
export interface EmbedFlags {
  workspace?: string;
  config?: string;
}

/** An engine of this process alone: who has its tokens may call and approve. */
export interface Embedded {
  url: string;
  tokens: { caller: string; approver: string };
  close(): Promise<void>;
}

/** Adds `toolgate run`. */
export function addRun(program: Command, embed: (flags: EmbedFlags) => Promise<Embedded>): void {
  program
    .command("run")
    .summary("run a tool here, without a server")
    .description(
      "Run a tool here, without a server; asks are answered at this terminal, and refused where there is none",
    )
    .argument("<tool>", "the tool's name")
    .argument("<json>", "its input: a JSON object, @FILE, or - for stdin")
    .option("--workspace <dir>", "the folder to work in (default: the current one)")
    .option("--config <file>", "the configuration, with its rules")
    .option("--agent <name>", "who calls (default: build)")
    .option("--timeout <ms>", "how long the tool may run", wholeNumber)
    .option("--metadata <json>", "kept with the call: a JSON object or @FILE")
    .addHelpText("after", `${runExamples}\n${promptHelp}`)
    .action((tool: string, json: string, options: CallOptions & EmbedFlags, command: Command) =>
      withScreen(command, (screen) => run(screen, embed, tool, json, options)),
    );
}

async function run(
  screen: Screen,
  embed: (flags: EmbedFlags) => Promise<Embedded>,
  tool: string,
  json: string,
  { workspace, config, ...options }: CallOptions & EmbedFlags,
): Promise<number> {
  const fields = await readCall(tool, json, options);
  const engine = await embed({
    ...(workspace !== undefined && { workspace }),
    ...(config !== undefined && { config }),
  });
  const server = connectServer(engine.url, {
    value: engine.tokens.caller,
    source: "the embedded engine's own token was sent",
  });
  const approver = connectServer(engine.url, {
    value: engine.tokens.approver,
    source: "the embedded engine's own token was sent",
  });
  const sessionId = newClientId("ses");
  try {
    const { storeId } = await server.sessions.createSession({ sessionId, agent: fields.agent });
    return await execute({
      server,
      screen,
      request: { ...fields, sessionId, callId: newClientId("call") },
      storeId,
      answering: hasTerminal() ? answeringAtTerminal(approver, screen) : () => refusing(approver),
      leftBehind: "the call ends with this command",
    });
  } catch (error) {
    const failure = commandFailure(error, server);
    screen.fail(failure);
    return failure.exitCode;
  } finally {
    server.close();
    approver.close();
    await engine.close();
  }
}

/** Nobody is here to be asked, and nobody else can be. */
function refusing(approver: ServerConnection): Answering {
  return { approver, decide: async () => ({ reply: PermissionReply.REJECT, message: nobody }) };
}

const nobody =
  "it needs a person's approval, and `toolgate run` asks only at its own terminal: run it in one, or allow it in the configuration";

const runExamples = `
Examples:
  toolgate run read '{"filePath": "README.md"}'
  toolgate run bash '{"command": "npm test", "description": "Run the tests"}' --workspace ../project

Nothing is kept: the record and the grants end with the command. Use \`toolgate serve\` and \`toolgate call\` to keep them.`;
