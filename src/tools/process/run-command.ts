import { type ChildProcess, spawn } from "node:child_process";
import { closeSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { ToolFailure } from "../../tool/errors.ts";
import { forwardOutput, type Pipes } from "./pipe.ts";

/** A command and how to end it. */
export interface CommandRun {
  /** The program and its arguments. */
  argv: readonly [string, ...string[]];
  cwd: string;
  /** The whole environment. */
  env: Record<string, string>;
  /** Open files that it inherits, from descriptor 3 on; default none. */
  descriptors?: readonly (number | "pipe")[];
  /** Time until it is killed. */
  timeoutMs: number;
  /** Aborting it kills the command; the reason is thrown. */
  signal: AbortSignal;
  output(chunk: Uint8Array): Promise<void>;
  pipes: Pipes;
  /** Calls back with the reason if all its processes together exceed a limit, for which it is killed; returns the function that ends the watch. */
  watchUsage(first: number, onExceeded: (reason: string) => void): () => void;
  /** Kills the command's process group and its other processes. */
  kill(group: number): Promise<void>;
}

/** The end of a command: by itself or by its timeout. */
export interface EndOfCommand {
  code: number | null;
  signal: NodeJS.Signals | null;
  timedOut: boolean;
  /** The limit that its processes exceeded together, for which it was killed. */
  exceeded?: string;
  /** Bytes of output. */
  bytes: number;
}

/**
 * Runs a program in its own session. Returns when it has exited, its output is forwarded and the other processes of its group
 * have ended, which are killed soon after it. In the sandbox that ends all that it started.
 */
export async function runCommand(run: CommandRun): Promise<EndOfCommand> {
  const { timeoutMs, signal, kill } = run;
  signal.throwIfAborted();
  const command = await start(run);
  const stop = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
  const over: { exceeded?: string } = {};
  const endWatch = run.watchUsage(command.pid, (reason) => {
    over.exceeded = reason;
    // In the sandbox this ends all, since the reaper of its processes belongs to the group.
    sendToGroup(command.pid, "SIGKILL");
  });
  try {
    await untilAborted(Promise.all([command.exited, command.forwarded, command.othersEnded]), stop);
    return { ...command.exit, ...over, timedOut: false, bytes: await command.forwarded };
  } catch (error) {
    await kill(command.pid);
    command.endOutput();
    await Promise.allSettled([command.forwarded]);
    signal.throwIfAborted();
    if (error !== stop.reason) throw error;
    return { ...command.exit, timedOut: true, bytes: await command.forwarded };
  } finally {
    endWatch();
  }
}

async function start({ argv: [program, ...args], cwd, env, descriptors = [], output, pipes }: CommandRun) {
  const { reader, writer } = await pipes.open().catch((cause: unknown) => cannotStart(program, cause));
  try {
    const child = spawn(program, args, {
      cwd,
      env,
      detached: true,
      stdio: ["ignore", writer, writer, ...descriptors],
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
      /** Set when `exited` resolves. */
      exit,
      exited,
      othersEnded: exited.then(() => endGroup(pid)),
      forwarded: forwardOutput(reader, ended.signal, output),
      /** Stops waiting for output; what is in the pipe is still forwarded. */
      endOutput: () => ended.abort(),
    };
  } catch (cause) {
    closeSync(reader);
    return cannotStart(program, cause);
  } finally {
    closeSync(writer);
  }
}

/** Time in which the other processes of a command may end by themselves, such as a `tee` that reads its last output. */
const lastWorkMs = 100;

/** Kills what is left of a process group. */
async function endGroup(group: number): Promise<void> {
  for (let pauseMs = 1; isAlive(group); pauseMs *= 2) {
    if (pauseMs > lastWorkMs) return void sendToGroup(group, "SIGKILL");
    await delay(pauseMs);
  }
}

const isAlive = (group: number) => sendToGroup(group, 0);

/** Returns false if no process of the group exists any more. */
function sendToGroup(group: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(-group, signal);
  } catch {
    return false;
  }
}

function cannotStart(program: string, cause: unknown): never {
  throw notRun(`Cannot start ${program}, so nothing has run`, cause);
}

/** Creates the failure of a command that has not run, with what to do next if the machine lacks something. */
export function notRun(what: string, cause: unknown): ToolFailure {
  const code = cause instanceof Error && "code" in cause ? String(cause.code) : "";
  return new ToolFailure(`${what}: ${String(cause)}.${adviceByCode[code] ?? ""}`, { cause, hadNoEffects: true });
}

const adviceByCode: Readonly<Record<string, string>> = {
  EMFILE:
    " The service has as many open files as it may have: try again later, or raise its limit (LimitNOFILE, ulimit -n).",
  ENFILE: " The machine has as many open files as it may have: try again later.",
  EAGAIN: " The service may have no further processes: try again later, or raise its limit (TasksMax, ulimit -u).",
};

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
