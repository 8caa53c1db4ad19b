import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A server that was started and listens. */
export interface ServerProcess {
  readonly url: string;
  readonly pid: number;
  /** Resolves to the first match in its output; only the first and the last 4 KiB of the past are searched. */
  printed(pattern: RegExp): Promise<string>;
}

/** The servers of one bench, and their directory. */
export interface Processes {
  /** Holds everything that the bench writes; removed with the bench. */
  readonly folder: string;
  /** Runs `node ARGS` and resolves when it prints its URL. */
  start(args: readonly string[]): Promise<ServerProcess>;
  /** Runs another program until its output matches `ready`; `missing` is the hint if it is not installed. */
  run(program: string, args: readonly string[], ready: RegExp, missing: string): Promise<{ readonly pid: number }>;
  /** Kills a server with SIGKILL, and resolves when it has ended. */
  kill(pid: number): Promise<void>;
  /** Stops all servers, the last one first since it may need the others, and resolves when they have ended. */
  stopAll(): Promise<void>;
}

/** Creates them; however the bench ends, none of its servers and files is left. */
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
    // A separate home, so that no configuration of the user changes the figures.
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
    async kill(pid) {
      const child = [...children].find((each) => each.pid === pid);
      if (child === undefined) return;
      const gone = once(child, "exit");
      child.kill("SIGKILL");
      await gone;
    },
    async stopAll() {
      for (const child of [...children].reverse()) await stop(child);
    },
  };
}

/** Reads what a process prints, since a full pipe would stop it; stores the beginning and the end. */
function createTail(child: ChildProcess) {
  let head = "";
  let text = "";
  const printed = (chunk: Buffer) => {
    if (head.length < 4_096) head += chunk.toString();
    text = (text + chunk.toString()).slice(-4_096);
  };
  child.stdout?.on("data", printed);
  child.stderr?.on("data", printed);
  return {
    text: () => text,
    first: (pattern: RegExp) =>
      new Promise<string>((resolve) => {
        const look = () => {
          const [found] = pattern.exec(head) ?? pattern.exec(text) ?? [];
          if (found !== undefined) resolve(found);
        };
        child.stdout?.on("data", look);
        child.stderr?.on("data", look);
        look();
      }),
  };
}

/** Finds a port that is free now, for programs that cannot choose one. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
