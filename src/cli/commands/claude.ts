import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import { deferredKey, resumerKey } from "../../agents/hooks/claude.ts";
import type { DecisionMemory } from "../../agents/hooks/delegate.ts";
import { connectVerified } from "../../client/connect.ts";
import { ServiceAwayError } from "../../client/verified-socket.ts";
import { locateProgram } from "../../core/locate-program.ts";
import { withScreen } from "../command.ts";
import { findAgentUser } from "../connect/agent-user.ts";
import { type ConnectRecord, readRecord } from "../connect/record.ts";
import { readCertificates } from "../connection/server-address.ts";
import type { CliContext } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { createDecisionFiles, decisionDirectory } from "../hook/decision-files.ts";

/** Defines `toolgate claude`. */
export function defineClaude(command: Command, context: CliContext): void {
  command
    .description(
      "Run `claude -p`; a use that waits for more than 20 s ends the run, which is resumed after the decision",
    )
    .argument("[args...]", "the arguments of claude, the prompt first")
    .addHelpText("after", claudeHelp)
    .action((args: string[]) =>
      withScreen(context, command, async ({ io }) => {
        const program = locateProgram("claude", io.env.PATH);
        if (program === undefined)
          throw new UsageError(
            "claude is not a program in PATH",
            "install it: npm install -g @anthropic-ai/claude-code",
          );
        const record = readRecord("claude", findAgentUser(undefined, io));
        if (record === undefined) throw new UsageError("claude is not connected", "run `toolgate connect claude`");
        const token = readFileSync(record.tokenFile, "utf8").trim();
        const memory = createDecisionFiles(decisionDirectory(io.env), token);
        const { code, stdout } = await runClaude(args, {
          ...{ program, env: io.env },
          announce: (sessionId) => announce(memory, sessionId),
          settled: (sessionId, useId) => waitUntilSettled(record, token, memory, deferredKey(sessionId, useId)),
        });
        io.stdout.write(stdout);
        return code;
      }),
    );
}

/** Announces every 10 s that the session will be resumed. */
async function announce(memory: DecisionMemory, sessionId: string): Promise<() => Promise<void>> {
  const key = resumerKey(sessionId);
  const put = () => memory.put(key, { case: "waiting", value: { permissions: [] } });
  await put();
  const timer = setInterval(() => void put().catch(() => undefined), announceMs);
  return async () => {
    clearInterval(timer);
    await memory.remove(key);
  };
}

/** Waits until every request of a deferred use is settled, also across restarts of the service. */
async function waitUntilSettled(
  { server, ca, ...proof }: ConnectRecord,
  token: string,
  memory: DecisionMemory,
  key: string,
): Promise<void> {
  const deferred = (await memory.get(key))?.decision;
  const permissions = deferred?.case === "waiting" ? deferred.value.permissions : [];
  const certificates = readCertificates(ca === undefined ? {} : { ca }, {});
  for (const { id: permissionId } of permissions) {
    while (!(await isSettled(permissionId))) await sleep(pollMs);
  }
  await memory.remove(key);

  async function isSettled(permissionId: string): Promise<boolean> {
    try {
      const client = await connectVerified({ url: server, token, ...certificates }, proof);
      try {
        return (await client.permissions.getPermission({ permissionId })).settled !== undefined;
      } finally {
        client.close();
      }
    } catch (error) {
      if (error instanceof ServiceAwayError) return false;
      if (!(error instanceof ConnectError)) throw error;
      // The hook of the resumed run denies a use whose request is gone.
      if (error.code === Code.NotFound) return true;
      if (error.code === Code.Unavailable || error.code === Code.Aborted) return false;
      throw error;
    }
  }
}

const announceMs = 10_000;
const pollMs = 1_000;

const claudeHelp = `
Example:
  toolgate claude -- "run the tests and fix what fails" --model opus

It needs the hooks of \`toolgate connect claude\`. A use that is rejected or expires is denied when the run is resumed.`;

/** The end of one run of `claude -p`. */
interface ClaudeEnd {
  code: number;
  stdout: string;
  /** Fields of its JSON output; empty if it printed none. */
  result: Readonly<Record<string, unknown>>;
}

/** Settings of a series of runs. */
interface ClaudeRunOptions {
  /** The program to run, by its path. */
  readonly program: string;
  readonly env: NodeJS.ProcessEnv;
  /** Announces that the session will be resumed, until the returned function is called. */
  announce(sessionId: string): Promise<() => Promise<void>>;
  /** Resolves when the requests of a deferred use are settled. */
  settled(sessionId: string, useId: string): Promise<void>;
}

/** Runs `claude -p`, and resumes it after each deferred use, until it ends otherwise. Returns what to print and the exit code. */
async function runClaude(
  args: readonly string[],
  options: ClaudeRunOptions,
): Promise<{ code: number; stdout: string }> {
  const { isJson, prompt, flags } = readArgs(args);
  let sessionId: string = randomUUID();
  let words = ["-p", ...prompt, ...flags, "--session-id", sessionId];
  for (let isFirst = true; ; isFirst = false) {
    const stop = await options.announce(sessionId);
    const { code, stdout, result } = await runOnce(words, options, isFirst).finally(stop);
    const { terminal_reason: reason, session_id: session, deferred_tool_use: use } = result;
    const useId = typeof use === "object" && use !== null && "id" in use ? use.id : undefined;
    if (reason !== "tool_deferred" || typeof session !== "string" || typeof useId !== "string") {
      const answer = typeof result.result === "string" && !isJson ? `${result.result}\n` : stdout;
      return { code, stdout: answer };
    }
    await options.settled(session, useId);
    sessionId = session;
    words = ["-p", ...flags, "--resume", sessionId];
  }
}

/** Splits the arguments: a resumed run takes the same flags and no prompt. */
function readArgs(args: readonly string[]) {
  const refused = args.find((word) => ownFlags.includes(word.split("=")[0] ?? ""));
  if (refused !== undefined)
    throw new UsageError(`${refused} cannot be given: Toolgate names the session itself`, "leave it out");
  const prompt = args[0] !== undefined && !args[0].startsWith("-") ? [args[0]] : [];
  const flags = args.slice(prompt.length);
  const i = flags.findIndex((word) => /^--output-format(=|$)/.test(word));
  const format = i < 0 ? "text" : (flags[i]?.split("=")[1] ?? flags[i + 1]);
  if (format !== "text" && format !== "json")
    throw new UsageError(`--output-format ${format} is not supported`, "use text or json");
  if (i >= 0) flags.splice(i, flags[i]?.includes("=") ? 1 : 2);
  return { isJson: format === "json", prompt, flags: [...flags, "--output-format", "json"] };
}

const ownFlags = ["-c", "--continue", "-r", "--resume", "--session-id", "--fork-session", "--no-session-persistence"];

async function runOnce(
  words: readonly string[],
  { program, env }: ClaudeRunOptions,
  isFirst: boolean,
): Promise<ClaudeEnd> {
  // The prompt may be on stdin.
  const child = spawn(program, words, { env, stdio: [isFirst ? "inherit" : "ignore", "pipe", "inherit"] });
  const [stdout, [code]] = await Promise.all([text(child.stdout), once(child, "close")]);
  return { code: typeof code === "number" ? code : 1, stdout, result: readResult(stdout) };
}

function readResult(stdout: string): Readonly<Record<string, unknown>> {
  try {
    return Object(JSON.parse(stdout));
  } catch {
    return {};
  }
}
