import { realpath } from "node:fs/promises";
import { join, sep } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { locateProgram } from "../../../core/locate-program.ts";
import type { AgentRun, RunUpdate } from "../runner.ts";
import type { AgentProcess } from "./acp-host.ts";
import type { AcpProgram, AcpRuntime, RunProgress } from "./acp-runtime.ts";
import { AgentFailure } from "./agent-failure.ts";
import { converse } from "./converse.ts";
import { keepTail } from "./tail.ts";

/** Runs the program for one run, to its end. Returns undefined if the run was cancelled; never throws. */
export async function runAgent(
  runtime: AcpRuntime,
  run: AgentRun,
  onProgress: (progress: RunProgress) => void,
): Promise<RunUpdate | undefined> {
  const { host, program } = runtime;
  try {
    return await withProgram(runtime, run, onProgress);
  } catch (error) {
    if (run.signal.aborted) return undefined;
    if (!(error instanceof AgentFailure)) host.log("a run of an agent failed", { error, runner: program.name });
    const why = error instanceof AgentFailure ? error.message : "it could not be run; see the log of the service";
    return { type: "failed", message: `The agent runner ${program.name} failed: ${why}` };
  }
}

async function withProgram(
  runtime: AcpRuntime,
  run: AgentRun,
  onProgress: (progress: RunProgress) => void,
): Promise<RunUpdate> {
  const { host, program } = runtime;
  const { command, args, env } = program;
  const cwd = await directoryOf(run, program);
  const file = locateProgram(command, env.PATH);
  if (file === undefined)
    throw new AgentFailure(`its program ${command} is not installed; the operator installs it, or corrects command`);
  const tools = await host.openTools(run);
  try {
    const process = await host.start({ argv: [file, ...args], cwd, env }, run, (title) => onProgress({ title }));
    const stderr = keepTail(process.stderr);
    try {
      return await converse(runtime, { run, cwd, process, tools, onProgress });
    } catch (error) {
      throw await explained(error, process, redacted(env, stderr));
    } finally {
      await process.kill();
    }
  } finally {
    tools.close();
  }
}

async function directoryOf(run: AgentRun, { cwd: below }: AcpProgram): Promise<string> {
  const cwd = await realpath(join(run.cwd, below)).catch(() => undefined);
  if (cwd === run.cwd || cwd?.startsWith(run.cwd + sep)) return cwd;
  const fact = cwd === undefined ? "does not exist in" : "leads out of";
  throw new AgentFailure(`its directory ${JSON.stringify(below)} ${fact} the workspace ${run.cwd}; correct cwd`);
}

/** Adds to a failure that the program has ended, and what it printed last. */
async function explained(error: unknown, process: AgentProcess, stderr: () => string): Promise<unknown> {
  const ended = await Promise.race([process.exited, delay(500, undefined, { ref: false })]);
  if (!(error instanceof AgentFailure) && ended === undefined) return error;
  const what = error instanceof AgentFailure ? error.message : "its program ended before its turn did";
  const how = ended === undefined ? "" : ` (${ended})`;
  const printed = stderr() === "" ? "" : `. It printed: ${JSON.stringify(stderr().slice(-500))}`;
  return new AgentFailure(what + how + printed, { cause: error });
}

/** Returns what a program printed, without the values of its variables, which may be keys. */
function redacted(env: AcpProgram["env"], stderr: () => string): () => string {
  const secrets = Object.entries(env).flatMap(([name, value]) =>
    name === "PATH" || name === "HOME" || value.length < 8 ? [] : [value],
  );
  return () => secrets.reduce((text, secret) => text.replaceAll(secret, "[redacted]"), stderr());
}
