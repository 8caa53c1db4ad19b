import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A server that was started and listens. */
export interface ServerProcess {
  readonly url: string;
  readonly pid: number;
  /** Resolves to what it printed, or will print, that fits; only the end of it is kept. */
  printed(pattern: RegExp): Promise<string>;
}

/** The servers of one bench, and a folder that is theirs. */
export interface Processes {
  /** Holds everything that the bench writes; it goes with the bench. */
  readonly folder: string;
  /** Runs `node ARGS` and resolves when it prints its URL. */
  start(args: readonly string[]): Promise<ServerProcess>;
  /** Runs another program; what it prints when it is ready fits `ready`, `missing` says how to get it if it is not there. */
  run(program: string, args: readonly string[], ready: RegExp, missing: string): Promise<{ readonly pid: number }>;
  /** Asks every server to stop, the last one first since it may need those before it, and resolves when they are gone. */
  stopAll(): Promise<void>;
}

/** Creates them; whatever way the bench ends, no server and no file of it is left. */
export function createProcesses(): Processes {
  const folder = mkdtempSync(join(tmpdir(), "toolgate-bench-"));
  const children = new Set<ChildProcess>();
  process.once("SIGINT", () => process.exit(130)).once("SIGTERM", () => process.exit(143));
  process.once("exit", () => {
    for (const child of children) child.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  });

  async function stop(child: ChildProcess): Promise<void> {
    const gone = once(child, "exit");
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 5_000);
    await gone;
    clearTimeout(timer);
  }

  function launch(program: string, args: readonly string[], missing = "") {
    // A home of its own, so that no configuration of the person who runs the bench changes what is measured.
    const child = spawn(program, args, { env: { PATH: process.env.PATH, HOME: folder } });
    children.add(child);
    const tail = createTail(child);
    child.once("error", (cause) => {
      throw new Error(`${program} cannot be run. ${missing}`, { cause });
    });
    child.once("exit", (code, signal) => {
      children.delete(child);
      if (child.killed) return;
      const ended = `${program} ${args.join(" ")} ended with ${signal ?? code} before the bench did`;
      throw new Error(`${ended}:\n${tail.text()}`);
    });
    return { pid: child.pid ?? 0, printed: tail.first };
  }

  return {
    folder,
    async start(args) {
      const { pid, printed } = launch(process.execPath, args);
      return { pid, printed, url: await printed(/http:\/\/127\.0\.0\.1:\d+(?=\D)/) };
    },
    async run(program, args, ready, missing) {
      const { pid, printed } = launch(program, args, missing);
      await printed(ready);
      return { pid };
    },
    async stopAll() {
      for (const child of [...children].reverse()) await stop(child);
    },
  };
}

/** The end of what a process prints; it is always read, or a full pipe would stop the process. */
function createTail(child: ChildProcess) {
  let text = "";
  const printed = (chunk: Buffer) => {
    text = (text + chunk.toString()).slice(-4_096);
  };
  child.stdout?.on("data", printed);
  child.stderr?.on("data", printed);
  return {
    text: () => text,
    first: (pattern: RegExp) =>
      new Promise<string>((resolve) => {
        const look = () => {
          const [found] = pattern.exec(text) ?? [];
          if (found !== undefined) resolve(found);
        };
        child.stdout?.on("data", look);
        child.stderr?.on("data", look);
        look();
      }),
  };
}
