import { closeSync, constants, fstatSync, openSync, readSync, statSync, writeSync } from "node:fs";
import type { Readable } from "node:stream";
import type { JsonObject } from "@bufbuild/protobuf";
import { answerClaude, denyClaude, ownClaudeTool } from "../../agents/hooks/claude.ts";
import { type ClaudeHook, HookInputError, readClaudeHook } from "../../agents/hooks/claude-hook.ts";
import {
  answerTool,
  codex,
  copilot,
  type Dialect,
  type DialectContext,
  gemini,
  opencode,
  type ToolHook,
} from "../../agents/hooks/dialects.ts";
import { waitToolName } from "../../agents/mcp/open-call-result.ts";
import { within } from "../../core/within.ts";
import {
  type ConnectorConnectionOptions,
  connectorConnection,
  connectorFailure,
  SilentServiceError,
} from "./connector-connection.ts";
import { createDecisionFiles, decisionDirectory } from "./decision-files.ts";
import { createServiceCalls, type ServiceCalls } from "./service-calls.ts";

/** Options of a hook. */
export interface HookOptions extends ConnectorConnectionOptions {
  /** The agent's limit for the hook, in seconds. */
  timeout: number;
}

/** The agent's limit in seconds that `toolgate connect` writes. */
export const hookTimeout = 660;

/** A kind of agent: how its hook is read, answered and refused. */
interface HookKind<Hook> {
  read(text: string): Hook;
  /** Returns the JSON to print; undefined for none. */
  answer(context: DialectContext, hook: Hook): Promise<JsonObject | undefined>;
  /** The answer to a failure; `hook` is undefined if it could not be read. */
  deny(hook: Hook | undefined, reason: string): JsonObject | undefined;
  /** Checks whether a failure must block: the tool has not run. */
  blocks(hook: Hook | undefined): boolean;
  /** Splits the name of a tool of an MCP server. */
  ownToolName(tool: string, mcpName: string): string | undefined;
}

const claude: HookKind<ClaudeHook> = {
  read: readClaudeHook,
  answer: answerClaude,
  deny: (hook, reason) => denyClaude(hook?.event ?? "PreToolUse", reason),
  blocks: (hook) => hook === undefined || !hook.event.startsWith("PostToolUse"),
  ownToolName: ownClaudeTool,
};

const inDialect = (dialect: Dialect): HookKind<ToolHook> => ({
  read: dialect.read,
  answer: (context, hook) => answerTool(dialect, context, hook),
  deny: (hook, reason) => (hook?.isBefore === false ? undefined : dialect.denied(reason)),
  blocks: (hook) => hook?.isBefore !== false,
  ownToolName: dialect.ownToolName,
});

/** The kinds of agents that have a hook. */
export const hookKinds = ["claude", "opencode", "codex", "gemini", "copilot"] as const;

/** A kind of agent that has a hook. */
export type HookKindName = (typeof hookKinds)[number];

/** Exit code that agents document as blocking. */
export const blockingExitCode = 2;

/**
 * Answers one hook on stdout and ends the process. On every failure it prints the agent's own refusal and exits with the blocking code;
 * also if its answer cannot be written, or does not come before the agent's limit: some agents would run the tool then.
 */
export function runHook(kind: HookKindName, options: HookOptions, own: HookProcess): Promise<never> {
  if (kind === "claude") return answerOnce(kind, claude, options, own);
  return answerOnce(kind, inDialect({ opencode, codex, gemini, copilot }[kind]), options, own);
}

/** Parts of its process that a hook uses. */
export interface HookProcess extends Pick<NodeJS.Process, "env" | "on" | "exit"> {
  readonly stdin: Readable;
}

async function answerOnce<Hook>(
  name: HookKindName,
  kind: HookKind<Hook>,
  options: HookOptions,
  own: HookProcess,
): Promise<never> {
  const limitMs = Math.max(options.timeout * 1_000 - marginMs, minAnswerMs);
  let hook: Hook | undefined;
  const fail = (error: unknown): never => {
    const reason = connectorFailure(error);
    const exitCode = kind.blocks(hook) ? blockingExitCode : 0;
    const denial = kind.deny(hook, reason);
    const isWritten = denial !== undefined && writeLine(stdout, JSON.stringify(denial));
    if (exitCode !== 0 || !isWritten) writeLine(stderr, reason);
    return own.exit(exitCode);
  };
  // An error that no promise carries, such as one of a connection that is closed already, decides nothing as long as an answer may come.
  let stray: unknown = new Error("the hook ended without an answer");
  own.on("uncaughtException", (error) => {
    stray = error;
  });
  own.on("beforeExit", () => fail(stray));
  const decide = async () => {
    hook = kind.read(await readAll(own));
    const { url, token, send } = connectorConnection(name, options);
    const calls = createServiceCalls(url, send, { endsAt: limitMs });
    const context: DialectContext = {
      calls,
      memory: createDecisionFiles(decisionDirectory(own.env), token),
      endsAt: limitMs,
      isOwnTool: ownToolCheck(kind, options.mcp, calls),
      async refusalOf(directory, root) {
        // Other agents' hooks start without this module.
        const { refusalOf } = await import("../connect/project-plugins.ts");
        return refusalOf({ directory, root, home: own.env.HOME ?? "" }, options.tokenFile ?? "");
      },
    };
    return await kind.answer(context, hook);
  };
  const silent = () => {
    throw new SilentServiceError("the service did not answer in time");
  };
  let answer: JsonObject | undefined;
  try {
    const silentMs = Math.min(limitMs + marginMs / 2, options.timeout * 1_000 - minLeftMs);
    answer = await within(Math.max(silentMs - performance.now(), 0), decide(), silent);
  } catch (error) {
    return fail(error);
  }
  if (isNowhere(stdout)) return fail(new Error("the agent cannot read the decision: stdout is closed or /dev/null"));
  if (answer === undefined || writeLine(stdout, JSON.stringify(answer))) return own.exit(0);
  return fail(new Error("the agent cannot read the decision: nothing reads stdout"));
}

/** Checks whether a tool is one of our MCP server: known by its random name, and it has that tool. */
function ownToolCheck<Hook>(kind: HookKind<Hook>, mcpName: string | undefined, calls: ServiceCalls) {
  return async (tool: string) => {
    const name = mcpName === undefined ? undefined : kind.ownToolName(tool, mcpName);
    if (name === undefined) return false;
    return name === waitToolName || (await calls.toolNames()).includes(name);
  };
}

/** Reads stdin to its end: what is in the pipe already at once, since a stream would take milliseconds, and the rest as it comes. */
function readAll(own: HookProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    let size = 0;
    const add = (piece: Buffer) => {
      size += piece.length;
      if (size > maxInputBytes)
        reject(new HookInputError(`the input of the hook has more than ${maxInputBytes} bytes`));
      else pieces.push(piece);
    };
    const end = () => resolve(Buffer.concat(pieces).toString());
    if (readPipe(add)) end();
    else own.stdin.on("data", add).once("end", end).once("error", reject);
  });
}

/** Reads what is in stdin without waiting; true if that was all. */
function readPipe(add: (piece: Buffer) => void): boolean {
  let descriptor: number | undefined;
  try {
    // Opened again, so that the pipe stays as the agent made it. Sockets cannot be opened; the agent waits for them as a stream.
    descriptor = openSync("/proc/self/fd/0", constants.O_RDONLY | constants.O_NONBLOCK);
    for (;;) {
      const piece = Buffer.alloc(pipeBytes);
      const size = readSync(descriptor, piece);
      if (size === 0) return true;
      add(piece.subarray(0, size));
    }
  } catch {
    return false;
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}

/** True for a descriptor that drops what is written. Node opens /dev/null in place of one that was closed before its start. */
function isNowhere(fd: number): boolean {
  return fstatSync(fd).rdev === statSync("/dev/null").rdev;
}

/** Writes a line; false if its reader is gone. */
function writeLine(fd: number, line: string): boolean {
  let rest = Buffer.from(`${line}\n`);
  const until = performance.now() + marginMs / 2;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      // The other end made the pipe non-blocking, and it is full.
      const isFull = error instanceof Error && "code" in error && error.code === "EAGAIN";
      if (!isFull || performance.now() > until) return false;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, fullPipeMs);
    }
  }
  return true;
}

const stdout = 1;
const stderr = 2;
const fullPipeMs = 5;
/** Time before the agent's limit at which the answer is there. */
const marginMs = 5_000;
/** Shortest time for an answer, for agents with a limit near the margin. */
const minAnswerMs = 1_000;
/** Time that is left before the limit in any case: some agents run a tool whose hook they end. */
const minLeftMs = 500;
const pipeBytes = 65_536;
const maxInputBytes = 16 * 1_048_576;
