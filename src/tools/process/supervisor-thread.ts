import { spawn } from "node:child_process";
import { parentPort, workerData } from "node:worker_threads";

// Thread of `createSupervisor`: starts the watcher and sends it heartbeats, so that a busy main thread kills no command.
const { script, replica, patience, heartbeatMs }: SupervisorThreadData = workerData;

/** Data for the thread. */
export interface SupervisorThreadData {
  script: string;
  replica: string;
  /** Seconds without a heartbeat after which the watcher kills. */
  patience: string;
  heartbeatMs: number;
}

/** Messages of the thread: the watcher runs; it has killed commands because no heartbeat came; it has exited. */
export type SupervisorReport = "ready" | "killed" | "exited";

const report = (message: SupervisorReport) => parentPort?.postMessage(message);
// Detached in a separate session, so that Ctrl-C does not reach it, and no mark.
const child = spawn("/bin/bash", ["--noprofile", "--norc", script, replica, patience], {
  cwd: "/",
  env: { PATH: "/usr/bin:/bin" },
  detached: true,
  stdio: ["pipe", "pipe", "ignore"],
});
// Errors of writes to a watcher that has just died; its exit event reports the death.
child.stdin.on("error", () => {});
child.stdout.on("data", (text: Buffer) => {
  for (const word of text.toString().split("\n")) if (word === "ready" || word === "killed") report(word);
});
const heartbeat = setInterval(() => child.stdin.write("\n"), heartbeatMs);
const exited = () => {
  clearInterval(heartbeat);
  report("exited");
  parentPort?.close();
};
child.once("exit", exited).once("error", exited);
parentPort?.once("message", () => child.stdin.end());
