import { type ChildProcess, spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { runCli } from "../../src/cli/cli.ts";
import type { CliProcess } from "../../src/cli/context.ts";
import { fakeService } from "./fake-service.ts";

const entry = fileURLToPath(new URL("entry.ts", import.meta.url));

/** The result of a finished command. */
export interface Finished {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** A running command. */
export interface Running {
  /** Resolves once these texts were printed on stdout or stderr, in this order; fails if the command ends first. */
  sees(...texts: string[]): Promise<void>;
  /** Returns what it has printed so far. */
  printed(): string;
  finished: Promise<Finished>;
}

/** A running command in its own process. */
export interface RunningProcess extends Running {
  child: ChildProcess;
}

/** Starts `toolgate` in this process, without a terminal; `environment` names the server and its tokens. */
export function startToolgate(args: readonly string[], environment: Record<string, string> = {}, input = ""): Running {
  const printed = createPrinted();
  const stdin = Object.assign(Readable.from(input === "" ? [] : [input]), { isTTY: false });
  const io: CliProcess = { stdin, stdout: printed.stdout, stderr: printed.stderr, env: environment };
  const code = runCli(args, { io, version: "0.0.0", program: [process.execPath, entry], loadService: fakeService(io) });
  return printed.running(code);
}

/** Runs `toolgate` in this process to its end. */
export async function toolgate(
  args: readonly string[],
  environment: Record<string, string> = {},
  input = "",
): Promise<Finished> {
  return await startToolgate(args, environment, input).finished;
}

/** Starts `toolgate` in its own process, for what only a process has: signals, and the end of its streams. */
export function spawnToolgate(args: readonly string[], environment: Record<string, string> = {}): RunningProcess {
  return watch(spawn(process.execPath, [entry, ...args], { env: { PATH: process.env.PATH, ...environment } }));
}

/** Starts `toolgate` at its own pseudo-terminal; everything that it prints is in `stdout`. */
export function startAtTerminal(args: readonly string[], environment: Record<string, string> = {}): RunningProcess {
  return startProgramAtTerminal([process.execPath, entry, ...args], environment);
}

/** Starts any program at its own pseudo-terminal. */
export function startProgramAtTerminal(
  program: readonly string[],
  environment: Record<string, string> = {},
): RunningProcess {
  const words = program.map((word) => `'${word.replaceAll("'", "'\\''")}'`);
  const env = { PATH: process.env.PATH, TERM: "xterm-256color", SHELL: "/bin/sh", ...environment };
  return watch(spawn("script", ["-qefc", words.join(" "), "/dev/null"], { env }));
}

function watch(child: ChildProcess): RunningProcess {
  const printed = createPrinted();
  child.stdout?.on("data", (piece: Buffer) => printed.stdout.write(piece));
  child.stderr?.on("data", (piece: Buffer) => printed.stderr.write(piece));
  return { child, ...printed.running(once(child, "close").then(([code]) => code)) };
}

/** Collects what a command prints. */
function createPrinted() {
  const news = new EventEmitter();
  const pieces = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  const textOf = (name: keyof typeof pieces) => Buffer.concat(pieces[name]).toString();
  const collect = (name: keyof typeof pieces) =>
    new Writable({
      write(piece: Buffer, _encoding, done) {
        pieces[name].push(piece);
        done();
        news.emit("printed");
      },
    });
  return {
    stdout: collect("stdout"),
    stderr: collect("stderr"),
    running(code: Promise<number | null>): Running {
      const finished = code.then((code) => ({ code, stdout: textOf("stdout"), stderr: textOf("stderr") }));
      const isSeen = (texts: readonly string[]) =>
        hasInOrder(textOf("stdout"), texts) || hasInOrder(textOf("stderr"), texts);
      return {
        finished,
        printed: () => textOf("stdout") + textOf("stderr"),
        async sees(...texts) {
          const ended = finished.then(() => "ended" as const);
          while (!isSeen(texts)) {
            const next = await Promise.race([once(news, "printed"), ended]);
            if (next === "ended" && !isSeen(texts))
              throw new Error(`it ended without "${texts}":\n${textOf("stdout")}${textOf("stderr")}`);
          }
        },
      };
    },
  };
}

function hasInOrder(printed: string, texts: readonly string[]): boolean {
  let from = 0;
  return texts.every((text) => {
    const at = printed.indexOf(text, from);
    from = at + text.length;
    return at >= 0;
  });
}
