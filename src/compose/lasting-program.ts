import { type ChildProcess, spawn } from "node:child_process";
import { realpathSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname } from "node:path";
import { Duplex, type Readable, type Writable } from "node:stream";
import { locateProgram } from "../core/locate-program.ts";
import { visible } from "../core/visible.ts";
import type { FileRules } from "../policy/file-rules.ts";
import { type SandboxPlace, watchCoverage } from "../sandbox/confinement.ts";
import type { Covered } from "../sandbox/layers.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { shownPath } from "../tools/process/confine-command.ts";
import type { SupervisedCall, Supervisor } from "../tools/process/supervisor.ts";

/** A program that outlives single calls. */
export interface LastingProgram {
  pid: number;
  stdin: Writable;
  stdout: Readable;
  stderr: Readable;
  /** Its descriptors 3 and 4, for a place with pipes: both are read and written. */
  pipes: readonly Duplex[];
  /** Resolves with a description of its end, such as `exit code 1`, or that it exceeded a limit. */
  exited: Promise<string>;
  /** Ends its process group and all its other processes. */
  kill(): Promise<void>;
}

/** A program to start, and the name under which it is supervised; `env` is its whole environment. */
export interface SupervisedProgram {
  call: SupervisedCall;
  argv: readonly [string, ...string[]];
  env: Readonly<Record<string, string>>;
  /** The rules that hold for the files of its place; absent: only what the profile says. */
  files?: ProgramFiles;
}

/** Rules about the files of a program. It has no permission of any call, and no one is asked. */
export interface ProgramFiles {
  /** Returns the rules that hold now. */
  rules(): Promise<FileRules>;
  /** Called if rules or files change so that the program reaches what it may not: mounts cannot be added to it. */
  onStale(problem: string): void;
  /** Called if that cannot be checked, once. */
  onProblem(error: unknown): void;
}

/** Starts a program in the sandbox. It ends with the service, however that ends. Throws `TooManyMounts` if rules hide too many files. */
export async function startLastingProgram(
  { sandbox, supervisor }: { sandbox: Sandbox; supervisor: Supervisor },
  { call, argv, env, files }: SupervisedProgram,
  place: SandboxPlace,
): Promise<LastingProgram> {
  const programs = directoriesOf(argv[0], env.PATH);
  const confined = await sandbox.confine(argv, {
    ...{ ...place, programs },
    ...(files && { files: { rules: await files.rules(), read: [], edit: [] } }),
  });
  // Directly before the start: the mounts take a while to plan, and nobody ends what starts after the supervisor has ended.
  const marks = await supervisor.watch(call).catch(async (error: unknown) => {
    await confined.release();
    throw error;
  });
  const [program, ...args] = confined.argv;
  const child = spawn(program, args, {
    cwd: place.cwd,
    env: { ...env, ...confined.env, ...marks },
    detached: true,
    stdio: ["pipe", "pipe", "pipe", ...confined.descriptors],
  });
  // Without a free descriptor it has no pipes, reports that later, and never closes.
  child.on("error", () => {
    if (!child.stdin) void confined.release();
  });
  const ended = new AbortController();
  child.once("close", () => {
    ended.abort();
    void confined.release();
  });
  if (files) {
    const onUncovered = (paths: readonly Covered[]) => files.onStale(staleText(paths, place.workspace));
    void watchCoverage({ ...files, confined, onUncovered }, ended.signal);
  }
  return await started(child, {
    kill: (pid) => supervisor.kill(call, pid),
    watchUsage: (pid, onExceeded) => sandbox.watchUsage(pid, confined.usage, onExceeded),
    exceeded: confined.exceeded,
  });
}

const maxNamed = 5;

/** Describes what a running program can reach although rules restrict it now. */
function staleText(paths: readonly Covered[], workspace: string): string {
  const named = paths
    .slice(0, maxNamed)
    .map(({ path, reason }) => `${shownPath(path, workspace)} (${visible(reason)})`);
  const more = paths.length > named.length ? ` and ${paths.length - named.length} more` : "";
  return `Rules restrict ${named.join(", ")}${more} since the program was started, and it can still reach that.`;
}

/** Returns the directories of a program: by its name, and where a link leads. */
function directoriesOf(command: string, searchPath: string | undefined): string[] {
  const program = locateProgram(command, searchPath);
  return program === undefined ? [] : [dirname(program), dirname(realpathSync(program))];
}

/** Time in which what a program printed before its end is read, even if another process holds its stdout. */
const lastOutputMs = 500;

/** Management of a started program, by its process ID. */
interface Management {
  kill(pid: number): Promise<void>;
  /** Calls back with the reason if all its processes together exceed a limit; returns the function that ends the watch. */
  watchUsage(pid: number, onExceeded: (reason: string) => void): () => void;
  /** Returns the limit that the kernel ended it for. */
  exceeded(): string | undefined;
}

/** Returns a started program; throws if it could not be started. */
async function started(child: ChildProcess, { kill, watchUsage, exceeded }: Management): Promise<LastingProgram> {
  const { stdin, stdout, stderr } = child;
  if (!stdin || !stdout || !stderr) throw new Error("a program has no pipes: the service may open no more files");
  const pipes = child.stdio.slice(3).filter((stream) => stream instanceof Duplex);
  const { promise: exited, resolve } = Promise.withResolvers<string>();
  const over: { reason?: string } = {};
  child.once("exit", (code, signal) => {
    const reason = over.reason ?? exceeded();
    if (reason !== undefined) resolve(`killed, since ${reason}`);
    resolve(signal === null ? `exit code ${code}` : `killed by ${signal}`);
    setTimeout(() => [stdout, ...pipes].forEach((stream) => void stream.destroy()), lastOutputMs).unref();
  });
  // Writing to a program that has ended; its end is reported by itself.
  stdin.on("error", () => undefined);
  const pid = child.pid ?? (await new Promise<never>((_, reject) => child.once("error", reject)));
  const endWatch = watchUsage(pid, (reason) => {
    over.reason = reason;
    killGroup(pid);
  });
  void exited.then(endWatch);
  return { pid, stdin, stdout, stderr, pipes, exited, kill: () => kill(pid) };
}

/** Ends a program at once, before it takes more; in the sandbox that ends all its processes. */
function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It has ended.
  }
}

/** Sums the resident memory of a process and of those that it started; 0 for what has ended. */
export async function residentBytes(pid: number): Promise<number> {
  const read = async (file: string) => await readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
  const [statm, children] = await Promise.all([read("statm"), read(`task/${pid}/children`)]);
  const own = Number(statm.split(" ")[1] ?? 0) * pageBytes;
  const below = await Promise.all(
    children
      .trim()
      .split(" ")
      .filter(Boolean)
      .map((child) => residentBytes(Number(child))),
  );
  return below.reduce((sum, bytes) => sum + bytes, own);
}

const pageBytes = 4_096;
