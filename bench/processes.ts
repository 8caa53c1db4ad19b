import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A server that was started and listens. */
export interface ServerProcess {
  readonly url: string;
  readonly pid: number;
}

/** The servers of one bench, and a folder that is theirs. */
export interface Processes {
  /** Holds everything that the bench writes; it goes with the bench. */
  readonly folder: string;
  /** Runs `node ARGS` and resolves when it prints its URL. */
  start(args: readonly string[]): Promise<ServerProcess>;
  /** Asks every server to stop and resolves when they are gone. */
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

  return {
    folder,
    async start(args) {
      // A home of its own, so that no configuration of the person who runs the bench changes what is measured.
      const child = spawn(process.execPath, args, { env: { PATH: process.env.PATH, HOME: folder } });
      children.add(child);
      child.once("exit", () => children.delete(child));
      return { url: await urlOf(child, args), pid: child.pid ?? 0 };
    },
    async stopAll() {
      await Promise.all([...children].map(stop));
    },
  };
}

/** The first address that a server prints; it goes on being read, or a full pipe would stop it. */
function urlOf(child: ChildProcess, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    let printed = "";
    const look = (chunk: Buffer) => {
      printed = (printed + chunk.toString()).slice(-4096);
      const url = /http:\/\/127\.0\.0\.1:\d+(?=\D)/.exec(printed)?.[0];
      if (url !== undefined) resolve(url);
    };
    child.stdout?.on("data", look);
    child.stderr?.on("data", look);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`node ${args.join(" ")} ended with ${code}:\n${printed}`)));
  });
}
