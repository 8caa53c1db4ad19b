import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { Duplex } from "node:stream";

/** Starts the scripted process, with the pipes of a tool process. */
export function startScripted() {
  const child = spawn(process.execPath, [join(import.meta.dirname, "scripted-process.ts")], {
    stdio: ["ignore", "inherit", "inherit", "pipe", "pipe"],
  });
  const [, , , toWorker, fromWorker] = child.stdio;
  if (!(toWorker instanceof Duplex && fromWorker instanceof Duplex)) throw new Error("no pipes");
  const exited = once(child, "exit").then(([code, signal]) => (signal ? `killed by ${signal}` : `exit code ${code}`));
  return { toWorker, fromWorker, exited, kill: () => void child.kill("SIGKILL") };
}
