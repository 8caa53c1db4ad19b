import type { JsonObject } from "@bufbuild/protobuf";
import { type Command, Option } from "commander";
import { CallToolResponseSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { replyCommand } from "../call/ask-prompt.ts";
import { execute, exitCodeOf } from "../call/execute.ts";
import { newClientId, wholeNumber, withServer } from "../command.ts";
import { findLocalToken, type ServerConnection, serverWords } from "../connection/connection.ts";
import type { CliContext, CliProcess } from "../context.ts";
import { readJsonObject } from "../json-argument.ts";
import { answeringAtTerminal, hasTerminal, promptHelp } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { askLines } from "../view/ask-view.ts";
import { partLines } from "../view/call-view.ts";
import { commandLine } from "../view/words.ts";

/** The options of a call, on a server or embedded. */
export interface CallOptions {
  agent?: string;
  timeout?: number;
  metadata?: string;
}

/** The fields of a call request, without its ids. */
export interface CallFields {
  tool: string;
  input: JsonObject;
  agent: string;
  timeoutMs: number;
  metadata?: JsonObject;
}

/** Defines `toolgate call`. */
export function defineCall(command: Command, context: CliContext): void {
  command
    .description(
      "Run a tool on a server and follow it to its end; the output goes to stdout, everything else to stderr",
    )
    .argument("<tool>", "the tool's name; `toolgate tools` lists them")
    .argument("<json>", "its input: a JSON object, @FILE, or - for stdin")
    .option("--session <id>", "the session to call in (default: a new one)")
    .option(
      "--call-id <id>",
      "the call's id, up to 128 characters of ASCII without spaces or braces; with the same session, tool and input it attaches to the call (default: a new one)",
    )
    .option("--agent <name>", "the calling agent (default: the session's agent)")
    .option("--timeout <ms>", "the maximum run time of the tool", wholeNumber)
    .addOption(
      new Option("--workspace <name>", "the workspace of the new session: NAME or NAME/folder").conflicts("session"),
    )
    .option("--metadata <json>", "stored with the call: a JSON object or @FILE")
    .option("--detach", "return as soon as the call is accepted")
    .addHelpText("after", `${callExamples}\n${promptHelp}`)
    .action((tool: string, json: string, options: CallCommandOptions) =>
      withServer(context, command, "caller", (server, screen) => call(server, screen, tool, json, options)),
    );
}

/** Reads a call's arguments and options. */
export async function readCall(tool: string, json: string, options: CallOptions, io: CliProcess): Promise<CallFields> {
  const input = await readJsonObject(json, "the input", io);
  const metadata =
    options.metadata === undefined ? undefined : await readJsonObject(options.metadata, "--metadata", io);
  return { tool, input, agent: options.agent ?? "", timeoutMs: options.timeout ?? 0, ...(metadata && { metadata }) };
}

interface CallCommandOptions extends CallOptions {
  session?: string;
  callId?: string;
  workspace?: string;
  detach?: boolean;
}

async function call(
  server: ServerConnection,
  screen: Screen,
  tool: string,
  json: string,
  options: CallCommandOptions,
): Promise<number> {
  const fields = await readCall(tool, json, options, screen.io);
  const sessionId = options.session ?? newClientId("ses");
  const callId = options.callId ?? newClientId("call");
  const storeId = options.session === undefined ? await createSession(server, sessionId, options) : "";
  screen.note(screen.paint.err("dim", `session ${sessionId}  call ${callId}`));
  const request = { ...fields, sessionId, callId };
  if (options.detach) return await detach(server, screen, request, storeId);
  const approver = hasTerminal(screen.io) ? approverBeside(server, screen.io) : undefined;
  const words = [
    "toolgate",
    "call",
    tool,
    json,
    "--session",
    sessionId,
    "--call-id",
    callId,
    ...serverWords(server.url),
  ];
  try {
    return await execute({
      server,
      screen,
      request,
      storeId,
      ...(approver && { answering: answeringAtTerminal(approver, screen) }),
      url: server.url,
      leftBehind: `the call goes on; attach to it with  ${commandLine(...words)}`,
    });
  } finally {
    approver?.close();
  }
}

async function createSession(
  { sessions }: ServerConnection,
  sessionId: string,
  { workspace = "", agent = "" }: CallCommandOptions,
): Promise<string> {
  const { storeId } = await sessions.createSession({ sessionId, workspace, agent });
  return storeId;
}

/** Connects as the approver who is signed in on this machine; undefined if tokens are in use and no one is. */
function approverBeside(server: ServerConnection, { env }: CliProcess): ServerConnection | undefined {
  const token = findLocalToken("approver", server.url, env);
  if (token.value === undefined && server.hasToken) return undefined;
  return server.as(token);
}

async function detach(
  server: ServerConnection,
  screen: Screen,
  request: CallFields & { sessionId: string; callId: string },
  expectedStoreId: string,
): Promise<number> {
  const response = await server.tools.callTool({ ...request, expectedStoreId, waitMs: 0 });
  if (screen.json) screen.emit(CallToolResponseSchema, response);
  const { part, permissions } = response;
  for (const line of part ? partLines(part, { paint: screen.paint.err, url: server.url }) : []) screen.note(line);
  for (const ask of permissions) {
    const lines = askLines(ask, screen.paint.err, { now: Date.now() });
    for (const line of [...lines, `  answer   ${replyCommand(ask, server.url)}`]) screen.note(line);
  }
  const { sessionId, callId } = request;
  const follow = commandLine("toolgate", "watch", sessionId, "--call", callId, ...serverWords(server.url));
  screen.note(`follow it with  ${follow}`);
  return part?.state.case === "error" || part?.state.case === "completed" ? exitCodeOf(part) : 0;
}

const callExamples = `
Examples:
  toolgate call read '{"filePath": "README.md"}'
  toolgate call bash '{"command": "npm test", "description": "Run the tests"}' > test.log
  echo '{"filePath": "a.txt", "content": "hi"}' | toolgate call write - --agent build

It prints the session and call ids: the same command with these ids attaches to the call and never runs it twice.
Ctrl-C cancels the call; a second Ctrl-C leaves it running.`;
