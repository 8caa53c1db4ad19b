import type { Command } from "commander";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { asksQuestions } from "../../view/questions.ts";
import type { Answering } from "../call/ask-prompt.ts";
import { execute } from "../call/execute.ts";
import { newClientId, usingServer, wholeNumber, withScreen } from "../command.ts";
import { connectServer, type ServerConnection } from "../connection/connection.ts";
import type { CliContext, EmbedFlags, LocalService } from "../context.ts";
import { answeringAtTerminal, hasTerminal, promptHelp } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { type CallOptions, readCall } from "./call.ts";

/** Defines `toolgate run`. */
export function defineRun(command: Command, context: CliContext): void {
  command
    .description(
      "Run a tool here, without a server; permission requests are answered at this terminal, and rejected without one",
    )
    .argument("<tool>", "the tool's name")
    .argument("<json>", "its input: a JSON object, @FILE, or - for stdin")
    .option("--workspace <dir>", "the directory to work in (default: the current one)")
    .option("--config <file>", "the configuration, with its rules")
    .option("--agent <name>", "the calling agent (default: build)")
    .option("--timeout <ms>", "the maximum run time of the tool", wholeNumber)
    .option("--metadata <json>", "stored with the call: a JSON object or @FILE")
    .addHelpText("after", `${runExamples}\n${promptHelp}`)
    .action((tool: string, json: string, options: CallOptions & EmbedFlags) =>
      withScreen(context, command, async (screen) => run(screen, await context.loadService(), tool, json, options)),
    );
}

async function run(
  screen: Screen,
  service: LocalService,
  tool: string,
  json: string,
  { workspace, config, ...options }: CallOptions & EmbedFlags,
): Promise<number> {
  const fields = await readCall(tool, json, options, screen.io);
  const embedded = await service.embedService({
    ...(workspace !== undefined && { workspace }),
    ...(config !== undefined && { config }),
  });
  const source = "the token of the embedded service was sent";
  const server = connectServer(embedded.url, { value: embedded.tokens.caller, source });
  const approver = connectServer(embedded.url, { value: embedded.tokens.approver, source });
  const sessionId = newClientId("ses");
  try {
    return await usingServer(server, screen, async () => {
      const { storeId } = await server.sessions.createSession({ sessionId, agent: fields.agent });
      return await execute({
        server,
        screen,
        request: { ...fields, sessionId, callId: newClientId("call") },
        storeId,
        answering: hasTerminal(screen.io) ? answeringAtTerminal(approver, screen) : () => refusing(approver),
        leftBehind: "the call ends with this command",
      });
    });
  } finally {
    approver.close();
    await embedded.close();
  }
}

/** Rejects every request, and dismisses every question: there is no terminal, and no other approver can reach an embedded service. */
function refusing(approver: ServerConnection): Answering {
  return {
    approver,
    decide: async (ask) => ({
      reply: PermissionReply.REJECT,
      message: asksQuestions(ask) ? `nobody could answer: ${atTerminal}` : needsTerminal,
    }),
  };
}

const atTerminal = "`toolgate run` asks only at its own terminal: run it in one";

const needsTerminal = `it needs a person's approval, and ${atTerminal}, or allow it in the configuration`;

const runExamples = `
Examples:
  toolgate run read '{"filePath": "README.md"}'
  toolgate run bash '{"command": "npm test", "description": "Run the tests"}' --workspace ../project

Nothing is stored: the record and the grants end with the command. Use \`toolgate serve\` and \`toolgate call\` to keep them.`;
