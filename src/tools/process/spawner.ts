import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import { assets } from "../../core/assets.ts";
import { ExecutorLost } from "../../tool/errors.ts";
import type { ProgramExit, ProgramReport, ProgramToStart } from "./spawn-process.ts";

/** Starts programs from a small process: a fork copies the page tables of the one that forks, and holds it up meanwhile. */
export interface Spawner {
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
const maxIdleMs = 600_000;

/** Creates the spawner, whose process starts with the first program. */
export function createSpawner(): Spawner {
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
    idle = setTimeout(close, maxIdleMs).unref();
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
      startedBy.send({ id, ...program }, (error) => error && lose(startedBy));
      return { pid: await pid, exited };
    },
  };
}
