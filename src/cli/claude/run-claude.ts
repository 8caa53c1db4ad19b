import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { UsageError } from "../failure/failure.ts";

/** The end of one run of `claude -p`. */
interface ClaudeEnd {
  code: number;
  stdout: string;
  /** Fields of its JSON output; empty if it printed none. */
  result: Readonly<Record<string, unknown>>;
}

/** Settings of a series of runs. */
export interface ClaudeRunOptions {
  /** The program to run, by its path. */
  readonly program: string;
  readonly env: NodeJS.ProcessEnv;
  /** Announces that the session will be resumed, until the returned function is called. */
  announce(sessionId: string): Promise<() => Promise<void>>;
  /** Resolves when the requests of a deferred use are settled. */
  settled(sessionId: string, useId: string): Promise<void>;
}

/** Runs `claude -p`, and resumes it after each deferred use, until it ends otherwise. Returns what to print and the exit code. */
export async function runClaude(
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
