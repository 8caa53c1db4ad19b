import { type ChildProcess, spawn } from "node:child_process";
import { closeSync } from "node:fs";
import { ToolFailure } from "../../tool/errors.ts";
import { type Pipes, passOn } from "./pipe.ts";

/** What to run and how to end it. */
export interface CommandRun {
  /** The program and its arguments. */
  argv: readonly [string, ...string[]];
  cwd: string;
  /** The whole environment. */
  env: Record<string, string>;
  /** Milliseconds until it is killed. */
  timeout: number;
  /** When it is aborted the command is killed and its reason is thrown. */
  signal: AbortSignal;
  output(chunk: Uint8Array): Promise<void>;
  pipes: Pipes;
  /** Kills the command's process group and whatever else belongs to it. */
  kill(group: number): Promise<void>;
}

/** How a command ended: by itself or because its time was over. */
export interface EndOfCommand {
  code: number | null;
  signal: NodeJS.Signals | null;
  timedOut: boolean;
  /** How much it wrote. */
  bytes: number;
}

/** Runs a program in its own session, and returns when it has exited and its output is passed on, whoever else holds the pipe. */
export async function runCommand(run: CommandRun): Promise<EndOfCommand> {
  const { timeout, signal, kill } = run;
  signal.throwIfAborted();
  const command = await start(run);
  const stop = AbortSignal.any([signal, AbortSignal.timeout(timeout)]);
  try {
    await untilAborted(Promise.all([command.exited, command.passed]), stop);
    return { ...command.exit, timedOut: false, bytes: await command.passed };
  } catch (error) {
    await kill(command.pid);
    command.endOutput();
    await Promise.allSettled([command.passed]);
    signal.throwIfAborted();
    if (error !== stop.reason) throw error;
    return { ...command.exit, timedOut: true, bytes: await command.passed };
  }
}

async function start({ argv: [program, ...args], cwd, env, output, pipes }: CommandRun) {
  const { reader, writer } = await pipes.open().catch((cause: unknown) => cannotStart(program, cause));
  try {
    const child = spawn(program, args, {
      cwd,
      env,
      detached: true,
      stdio: ["ignore", writer, writer],
    });
    const ended = new AbortController();
    const exit: { code: number | null; signal: NodeJS.Signals | null } = { code: null, signal: null };
    const exited = new Promise<void>((resolve) => {
      child.once("exit", (code, signal) => {
        exit.code = code;
        exit.signal = signal;
        ended.abort();
        resolve();
      });
    });
    const pid = await pidOf(child);
    return {
      pid,
      /** Filled in when `exited` resolves. */
      exit,
      exited,
      passed: passOn(reader, ended.signal, output),
      /** Waits no longer for output; what is in the pipe is still passed on. */
      endOutput: () => ended.abort(),
    };
  } catch (cause) {
    closeSync(reader);
    return cannotStart(program, cause);
  } finally {
    closeSync(writer);
  }
}

function cannotStart(program: string, cause: unknown): never {
  throw new ToolFailure(`Cannot start ${program}: ${String(cause)}`, { cause });
}

function pidOf(child: ChildProcess): Promise<number> {
  if (child.pid !== undefined) return Promise.resolve(child.pid);
  return new Promise((_, reject) => child.once("error", reject));
}

async function untilAborted(work: Promise<unknown>, signal: AbortSignal): Promise<void> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  try {
    await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
