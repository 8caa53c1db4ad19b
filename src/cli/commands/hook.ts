import { fstatSync, statSync } from "node:fs";
import type { JsonObject } from "@bufbuild/protobuf";
import { Argument, type Command } from "commander";
import { answerClaude, denyClaude, ownClaudeTool } from "../../agents/hooks/claude.ts";
import { type ClaudeHook, HookInputError, readClaudeHook } from "../../agents/hooks/claude-hook.ts";
import {
  answerOpencode,
  denyOpencode,
  type OpencodeHook,
  ownOpencodeTool,
  readOpencodeHook,
} from "../../agents/hooks/opencode.ts";
import { waitToolName } from "../../agents/mcp/open-call-result.ts";
import { within } from "../../core/within.ts";
import type { CliContext, InputStream, OutputStream } from "../context.ts";
import {
  type ConnectorConnectionOptions,
  connectorConnection,
  connectorFailure,
  SilentServiceError,
} from "../hook/connector-connection.ts";
import { createDecisionFiles, decisionDirectory } from "../hook/decision-files.ts";
import { createServiceCalls, type ServiceCalls } from "../hook/service-calls.ts";
import { wholeNumber } from "./call.ts";

/** Defines `toolgate hook`. */
export function defineHook(command: Command, context: CliContext): void {
  command
    .description("Answer a hook of an agent: its JSON on stdin, the decision on stdout; every failure refuses")
    .addArgument(new Argument("<agent>", "the kind of agent").choices(Object.keys(kinds)))
    .option("--uid <number>", "the user that owns the service's socket on this machine", wholeNumber)
    .option("--certificate <sha256>", "the SHA-256 of the certificate of an https service")
    .option("--mcp <name>", "the name under which the agent knows the MCP server of Toolgate")
    .option("--timeout <seconds>", "the agent's limit for the hook; the answer comes 5 s earlier", wholeNumber, 660)
    .addHelpText("after", hookHelp)
    .action((agent: keyof typeof kinds) => {
      const options = command.optsWithGlobals<HookOptions>();
      return agent === "claude" ? runHook(context, claude, options) : runHook(context, opencode, options);
    });
}

const claude: HookKind<ClaudeHook> = {
  name: "claude",
  read: readClaudeHook,
  answer: answerClaude,
  deny: (hook, reason) => denyClaude(hook?.event ?? "PreToolUse", reason),
  blocks: (hook) => hook === undefined || !hook.event.startsWith("PostToolUse"),
  ownToolName: ownClaudeTool,
};

const opencode: HookKind<OpencodeHook> = {
  name: "opencode",
  read: readOpencodeHook,
  answer: answerOpencode,
  deny: (_hook, reason) => denyOpencode(reason),
  blocks: (hook) => hook === undefined || hook.event === "before",
  ownToolName: ownOpencodeTool,
};

const kinds = { claude, opencode };

const hookHelp = `
\`toolgate connect\` writes this command into the configuration of the agent, with the server, the file of the token and the proof of
the service: it reads them from its options only, since a project may set the environment of hooks. It verifies the service before it sends anything. On every failure it prints the agent's own refusal and
exits with 2, which blocks the tool.`;

/** Options of `toolgate hook`. */
interface HookOptions extends ConnectorConnectionOptions {
  /** The agent's limit for the hook, in seconds. */
  timeout: number;
}

/** Dependencies of a hook: the service, and what is remembered between its processes. */
interface HookContext {
  calls: ServiceCalls;
  memory: ReturnType<typeof createDecisionFiles>;
  endsAt: number;
  isOwnTool(tool: string): Promise<boolean>;
  /** Returns why opencode may use no tool in a project: it loads code that nobody accepted. */
  refusalOf(directory: string, root: string): Promise<string | undefined>;
}

/** A kind of agent: how its hook is read, answered and refused. */
interface HookKind<Hook> {
  name: string;
  read(text: string): Hook;
  answer(context: HookContext, hook: Hook): Promise<JsonObject>;
  /** The answer to a failure; `hook` is undefined if it could not be read. */
  deny(hook: Hook | undefined, reason: string): JsonObject;
  /** Checks whether a failure must block: the tool has not run. */
  blocks(hook: Hook | undefined): boolean;
  /** Splits the name of a tool of an MCP server. */
  ownToolName(tool: string, mcpName: string): string | undefined;
}

/** Exit code that agents document as blocking. */
const blockingExitCode = 2;

/** Answers one hook on stdout. On every failure it prints the agent's own refusal, and exits with the blocking code. */
async function runHook<Hook>(
  { io, setExitCode }: CliContext,
  kind: HookKind<Hook>,
  options: HookOptions,
): Promise<void> {
  let hook: Hook | undefined;
  let server = "";
  let isAnswered = false;
  const block = (reason: string) => {
    if (!kind.blocks(hook)) return;
    io.stderr.write(`${reason}\n`);
    setExitCode(blockingExitCode);
    process.exitCode = blockingExitCode;
  };
  const answer = (json: JsonObject) => {
    if (isAnswered) return;
    isAnswered = true;
    if (isNowhere(io.stdout)) return block("the agent cannot read the decision: stdout is closed or /dev/null");
    io.stdout.write(`${JSON.stringify(json)}\n`, (error) => {
      if (error) block(`the agent cannot read the decision: ${error.message}`);
    });
  };
  const fail = (error: unknown) => {
    if (isAnswered) return;
    const reason = connectorFailure(error, server);
    answer(kind.deny(hook, reason));
    block(reason);
  };
  // An error that no promise carries, such as one of a connection that is closed already, must not end the process.
  let stray: unknown = new Error("the hook ended without an answer");
  process.on("uncaughtException", (error) => {
    stray = error;
  });
  process.once("exit", () => fail(stray));
  let calls: ServiceCalls | undefined;
  try {
    hook = kind.read(await readAll(io.stdin));
    const connection = connectorConnection(kind.name, options);
    server = connection.url;
    const limitMs = Math.max(options.timeout * 1_000 - marginMs, minAnswerMs);
    calls = createServiceCalls(server, connection.connect, { endsAt: limitMs });
    const answered = kind.answer(
      {
        calls,
        memory: createDecisionFiles(decisionDirectory(io.env), connection.token),
        endsAt: limitMs,
        isOwnTool: ownToolCheck(kind, options.mcp, calls),
        refusalOf: async (directory, root) => {
          // Other agents' hooks start without this module.
          const { refusalOf } = await import("../connect/project-plugins.ts");
          return refusalOf({ directory, root, home: io.env.HOME ?? "" }, options.tokenFile ?? "");
        },
      },
      hook,
    );
    // A service that is connected and silent must not outlast the agent's limit: some agents would run the tool then.
    const leftMs = Math.max(limitMs + marginMs / 2 - performance.now(), 0);
    const silent = () => {
      throw new SilentServiceError("the service did not answer in time");
    };
    answer(await within(leftMs, answered, silent));
  } catch (error) {
    fail(error);
  } finally {
    calls?.close();
  }
}

/** True for a stdout that drops what is written. Node opens /dev/null in place of one that was closed before its start. */
function isNowhere(stdout: OutputStream): boolean {
  if (!("fd" in stdout) || typeof stdout.fd !== "number") return false;
  return fstatSync(stdout.fd).rdev === statSync("/dev/null").rdev;
}

/** Checks whether a tool is one of our MCP server: known by its random name, and it has that tool. */
function ownToolCheck<Hook>(kind: HookKind<Hook>, mcpName: string | undefined, calls: ServiceCalls) {
  return async (tool: string) => {
    const name = mcpName === undefined ? undefined : kind.ownToolName(tool, mcpName);
    if (name === undefined) return false;
    return name === waitToolName || (await calls.toolNames()).includes(name);
  };
}

async function readAll(stdin: InputStream): Promise<string> {
  const pieces: Buffer[] = [];
  let size = 0;
  for await (const piece of stdin) {
    const bytes = Buffer.from(piece);
    size += bytes.length;
    if (size > maxInputBytes) throw new HookInputError(`the input of the hook has more than ${maxInputBytes} bytes`);
    pieces.push(bytes);
  }
  return Buffer.concat(pieces).toString();
}

/** Time before the agent's limit at which the answer is there. */
const marginMs = 5_000;
/** Shortest time for an answer, for agents with a limit near the margin. */
const minAnswerMs = 1_000;
const maxInputBytes = 16 * 1_048_576;
