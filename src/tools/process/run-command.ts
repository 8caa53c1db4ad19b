import { type ChildProcess, execFile, fork } from "node:child_process";
import { closeSync, constants, openSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { assets } from "../../core/assets.ts";
import { untilAborted } from "../../core/within.ts";
import { ExecutorLost, ToolFailure } from "../../tool/errors.ts";
import type { ProgramExit, ProgramReport, ProgramToStart } from "./spawn-process.ts";
import { readProcesses } from "./supervisor.ts";

/** A command and how to end it. */
export interface CommandRun {
  /** The program and its arguments. */
  argv: readonly [string, ...string[]];
  /** A program that was started before, and the function that lets it become the command; absent: `argv` is started. */
  waiting?: { readonly program: LaunchedProgram; readonly begin: () => void } | undefined;
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
  run.waiting?.begin();
  const command = follow(run.waiting?.program ?? (await launch(run)), run.output);
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

/** A program that was started, and the pipe that holds its output. */
export interface LaunchedProgram extends StartedProgram {
  readonly reader: number;
  /** Ends its process group. */
  kill(): void;
}

/** Starts a program in its own session. */
export async function launch({
  argv: [program, ...args],
  cwd,
  env,
  descriptors = [],
  pipes,
}: Pick<CommandRun, "argv" | "cwd" | "env" | "descriptors" | "pipes">): Promise<LaunchedProgram> {
  const { reader, writer } = await pipes.open().catch((cause: unknown) => cannotStart(program, cause));
  try {
    // Only programs that outlive single calls get pipes.
    const inherited = descriptors.filter((descriptor) => descriptor !== "pipe");
    const started = await pipes.spawn({ program, args, cwd, env, descriptors: [writer, writer, ...inherited] });
    return { ...started, reader, kill: () => void sendToGroup(started.pid, "SIGKILL") };
  } catch (cause) {
    closeSync(reader);
    if (cause instanceof ExecutorLost) throw cause;
    return cannotStart(program, cause);
  } finally {
    closeSync(writer);
  }
}

function follow({ pid, exited, reader }: LaunchedProgram, output: CommandRun["output"]) {
  const ended = new AbortController();
  const exit: { -readonly [Field in keyof ProgramExit]: ProgramExit[Field] } = { code: null, signal: null };
  const hasExited = exited.then((how) => {
    Object.assign(exit, how);
    ended.abort();
  });
  return {
    pid,
    /** Set when `exited` resolves. */
    exit,
    exited: hasExited,
    othersEnded: hasExited.then(() => endGroup(pid)),
    forwarded: forwardOutput(reader, ended.signal, output),
    /** Stops waiting for output; what is in the pipe is still forwarded. */
    endOutput: () => ended.abort(),
  };
}

/** Time in which the other processes of a command may end by themselves, such as a `tee` that reads its last output. */
const lastWorkMs = 100;

/** Kills what is left of a process group. */
async function endGroup(group: number): Promise<void> {
  for (let pauseMs = 1; isAlive(group); pauseMs *= 2) {
    if (pauseMs > lastWorkMs) return void sendToGroup(group, "SIGKILL");
    // In a container nobody may collect what has ended, and it counts as alive.
    if (pauseMs === firstLookMs && !(await hasRunning(group))) return void sendToGroup(group, "SIGKILL");
    await delay(pauseMs);
  }
}

/** Processes are looked up only if a group outlives its first process for longer than usual. */
const firstLookMs = 4;

/** Checks if a process of the group runs that has not ended; true if that is not known. */
async function hasRunning(group: number): Promise<boolean> {
  const processes = await readProcesses("stat").catch(() => undefined);
  const isRunning = ({ text }: { text: string }) => {
    const [state = "Z", , ofGroup] = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return Number(ofGroup) === group && !"ZX".includes(state);
  };
  return processes === undefined || processes.some(isRunning);
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

/** The two file descriptors of a pipe; the caller closes both. */
interface Pipe {
  reader: number;
  writer: number;
}

/** A pool of kernel pipes, and the programs that get them. */
export interface Pipes extends Pick<Spawner, "spawn"> {
  open(): Promise<Pipe>;
  /** Closes the pipes that were not opened, and starts no more programs. */
  close(): Promise<void>;
}

const maxReady = 32;
const fewReady = 8;

/**
 * Creates a pool of pipes, filled before they are needed: Node cannot make pipes, so `mkfifo` makes many at once. The "pipes" of
 * Node are sockets, which a command cannot open as /dev/stdout or /dev/stderr. One pipe for both preserves their order.
 */
export function createPipes(): Pipes {
  const ready: number[] = [];
  const spawner = createSpawner();
  let making: Promise<void> | undefined;

  function make(): Promise<void> {
    making ??= makePipes(maxReady)
      .then((made) => void ready.push(...made))
      .finally(() => {
        making = undefined;
      });
    return making;
  }

  async function take(): Promise<number> {
    for (;;) {
      const pipe = ready.pop();
      if (pipe === undefined) {
        await make();
        continue;
      }
      // A failure surfaces when the pool is empty.
      if (ready.length < fewReady) make().catch(() => {});
      return pipe;
    }
  }

  return {
    spawn: spawner.spawn,
    async open() {
      const pipe = await take();
      try {
        // The reader first and non-blocking: otherwise each end would wait for the other.
        const modes = [constants.O_RDONLY | constants.O_NONBLOCK, constants.O_WRONLY];
        const [reader = -1, writer = -1] = openAll(modes.map((mode) => [`/proc/self/fd/${pipe}`, mode]));
        return { reader, writer };
      } finally {
        closeSync(pipe);
      }
    },
    async close() {
      spawner.close();
      await making?.catch(() => {});
      for (const pipe of ready.splice(0)) closeSync(pipe);
    },
  };
}

/** Makes unnamed pipes, each open for reading and writing. */
async function makePipes(count: number): Promise<number[]> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-"));
  try {
    const paths = Array.from({ length: count }, (_, index) => join(directory, String(index)));
    await promisify(execFile)("mkfifo", ["-m", "600", ...paths]);
    return openAll(paths.map((path) => [path, constants.O_RDWR | constants.O_NONBLOCK]));
  } finally {
    // Without a free descriptor this fails, too, and must not hide the first failure.
    await rm(directory, { recursive: true }).catch(() => undefined);
  }
}

/** Opens files; closes those that are open if one cannot be opened. */
function openAll(files: readonly (readonly [path: string, mode: number])[]): number[] {
  const opened: number[] = [];
  try {
    for (const [path, mode] of files) opened.push(openSync(path, mode));
    return opened;
  } catch (error) {
    for (const descriptor of opened) closeSync(descriptor);
    throw error;
  }
}

const maxIdleMs = 100;
const pieceBytes = 65_536;
/** More than the capacity of a pipe and its reader. */
const maxInFlight = 262_144;

/**
 * Forwards the output of a pipe with backpressure and returns its byte count; chunks are overwritten afterwards. Once `ended` is
 * aborted it forwards what is left in the pipe and closes it, even if another process holds the other end. It always closes the
 * pipe.
 */
function forwardOutput(
  pipe: number,
  ended: AbortSignal,
  output: (chunk: Uint8Array) => Promise<void>,
): Promise<number> {
  let forwardedBytes = 0;
  let bytesSinceEnd = 0;
  let isIdle = true;
  let timer: NodeJS.Timeout | undefined;

  const reader = new Socket({
    fd: pipe,
    readable: true,
    writable: false,
    // One buffer for all chunks: new ones would become garbage faster than they are collected.
    onread: {
      buffer: Buffer.allocUnsafe(pieceBytes),
      callback(length, buffer) {
        isIdle = false;
        clearTimeout(timer);
        forward(buffer.subarray(0, length)).then(
          () => reader.resume(),
          (error: Error) => reader.destroy(error),
        );
        return false;
      },
    },
  });

  async function forward(chunk: Uint8Array): Promise<void> {
    await output(chunk);
    forwardedBytes += chunk.length;
    if (ended.aborted) bytesSinceEnd += chunk.length;
    if (bytesSinceEnd > maxInFlight) reader.destroy();
    isIdle = true;
    if (ended.aborted) limitIdleTime();
  }

  function limitIdleTime(): void {
    if (!isIdle) return;
    const before = forwardedBytes;
    const closeIfIdle = () => {
      if (isIdle && forwardedBytes === before) reader.destroy();
    };
    // The immediate lets a busy event loop read the pipe once more before it is closed.
    timer = setTimeout(() => setImmediate(closeIfIdle), maxIdleMs);
  }

  const { promise, resolve, reject } = Promise.withResolvers<number>();
  reader.once("end", () => reader.destroy());
  reader.once("error", reject);
  reader.once("close", () => {
    clearTimeout(timer);
    ended.removeEventListener("abort", limitIdleTime);
    resolve(forwardedBytes);
  });
  ended.addEventListener("abort", limitIdleTime, { once: true });
  if (ended.aborted) limitIdleTime();
  return promise;
}

/** Starts programs from a small process: a fork copies the page tables of the one that forks, and holds it up meanwhile. */
interface Spawner {
  /** Starts a program; rejects if it was not started, with `ExecutorLost` if that is uncertain. */
  spawn(program: ProgramToStart): Promise<StartedProgram>;
  /** Ends the process; programs that run go on. */
  close(): void;
}

/** A program that was started. `exited` never rejects. */
interface StartedProgram {
  readonly pid: number;
  readonly exited: Promise<ProgramExit>;
}

/** A program that was sent to a process. */
interface WaitingProgram {
  readonly startedBy: ChildProcess;
  start(pid: number): void;
  fail(error: Error): void;
  end(exit: ProgramExit): void;
}

const lostText = "The process that starts commands has ended, so it is unknown whether the command ran.";

/** Time without programs after which the process ends. */
const maxSpawnerIdleMs = 600_000;

/** Creates the spawner, whose process starts with the first program. */
function createSpawner(): Spawner {
  const programs = new Map<number, WaitingProgram>();
  let lastId = 0;
  let child: ChildProcess | undefined;
  let idle: NodeJS.Timeout | undefined;

  function close(): void {
    clearTimeout(idle);
    if (child?.connected) child.disconnect();
    child = undefined;
  }

  function forget(id: number): void {
    programs.delete(id);
    if (programs.size > 0) return;
    // Only programs keep this process alive.
    child?.channel?.unref();
    idle = setTimeout(close, maxSpawnerIdleMs).unref();
  }

  function take(report: ProgramReport): void {
    const program = programs.get(report.id);
    if (!("pid" in report)) forget(report.id);
    if ("pid" in report) program?.start(report.pid);
    else if ("exit" in report) program?.end(report.exit);
    else program?.fail(Object.assign(new Error(report.error), { code: report.code }));
  }

  /** Ends the programs of which a process can no longer report: the caller kills the rest of the group. */
  function lose(lost: ChildProcess, error: Error = new ExecutorLost(lostText)): void {
    if (child === lost) child = undefined;
    for (const [id, { startedBy, fail, end }] of programs) {
      if (startedBy !== lost) continue;
      forget(id);
      fail(error);
      end({ code: null, signal: "SIGKILL" });
    }
  }

  function startedChild(): ChildProcess {
    if (child?.connected) return child;
    const started = fork(fileURLToPath(assets.spawnProcess), [], {
      ...{ cwd: "/", env: {}, execArgv: [], detached: true, serialization: "json" },
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    started.unref();
    started
      .on("message", take)
      .once("exit", () => lose(started))
      .once("error", (error) => lose(started, error));
    child = started;
    return started;
  }

  return {
    close,
    async spawn(program) {
      const id = ++lastId;
      const { promise: pid, resolve: start, reject: fail } = Promise.withResolvers<number>();
      const { promise: exited, resolve: end } = Promise.withResolvers<ProgramExit>();
      const startedBy = startedChild();
      programs.set(id, { startedBy, start, fail, end });
      clearTimeout(idle);
      startedBy.channel?.ref();
      // One that could not be forked reports that as its error.
      if (startedBy.connected) startedBy.send({ id, ...program }, (error) => error && lose(startedBy));
      return { pid: await pid, exited };
    },
  };
}
