import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

const entry = fileURLToPath(new URL("entry.ts", import.meta.url));

/** What a finished command left. */
export interface Finished {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** A running command. */
export interface Running {
  child: ChildProcess;
  /** Resolves once these texts were printed on stdout or stderr, each after the one before; fails if the command ends first. */
  sees(...texts: string[]): Promise<void>;
  finished: Promise<Finished>;
}

/** Starts `toolgate` as a process of its own, with no terminal; `environment` says where it finds the server and its tokens. */
export function startToolgate(args: readonly string[], environment: Record<string, string> = {}): Running {
  return watch(spawn(process.execPath, [entry, ...args], { env: { PATH: process.env.PATH, ...environment } }));
}

/** Starts it at a pseudo-terminal of its own; what it prints is all in `stdout`. */
export function startAtTerminal(args: readonly string[], environment: Record<string, string> = {}): Running {
  return startProgramAtTerminal([process.execPath, entry, ...args], environment);
}

/** Starts any program at a pseudo-terminal of its own. */
export function startProgramAtTerminal(program: readonly string[], environment: Record<string, string> = {}): Running {
  const words = program.map((word) => `'${word.replaceAll("'", "'\\''")}'`);
  const env = { PATH: process.env.PATH, TERM: "xterm-256color", SHELL: "/bin/sh", ...environment };
  return watch(spawn("script", ["-qefc", words.join(" "), "/dev/null"], { env }));
}

/** Runs it to its end. */
export async function toolgate(
  args: readonly string[],
  environment: Record<string, string> = {},
  input = "",
): Promise<Finished> {
  const { child, finished } = startToolgate(args, environment);
  child.stdin?.end(input);
  return await finished;
}

function watch(child: ChildProcess): Running {
  let stdout = "";
  let stderr = "";
  child.stdout?.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
    child.emit("printed");
  });
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
    child.emit("printed");
  });
  const finished = once(child, "close").then(([code]) => ({ code, stdout, stderr }));
  return {
    child,
    finished,
    async sees(...texts) {
      const ended = finished.then(() => "ended" as const);
      const isSeen = () => hasInTurn(stdout, texts) || hasInTurn(stderr, texts);
      while (!isSeen()) {
        const news = await Promise.race([once(child, "printed"), ended]);
        if (news === "ended" && !isSeen()) throw new Error(`it ended without "${texts}":\n${stdout}${stderr}`);
      }
    },
  };
}

function hasInTurn(printed: string, texts: readonly string[]): boolean {
  let from = 0;
  return texts.every((text) => {
    const at = printed.indexOf(text, from);
    from = at + text.length;
    return at >= 0;
  });
}
