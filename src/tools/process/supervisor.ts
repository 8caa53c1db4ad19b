import { readdir, readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { assets } from "../../core/assets.ts";
import { emptyUnlessFull } from "../../core/read-files.ts";
import type { SupervisorReport, SupervisorThreadData } from "./supervisor-thread.ts";

/** Identifies a call for the supervisor. */
export type SupervisedCall = { sessionId: string; callId: string };

/** Ends commands with their call and with their service, even if the service is killed or frozen. Linux only. */
export interface Supervisor {
  /** Returns the marks for a command's environment, by which its processes are found. Throws if the watcher cannot start. */
  watch(call: SupervisedCall): Promise<Record<string, string>>;
  /** The number of times that it killed all commands, because no heartbeat came. */
  kills(): number;
  /** Ends the call's processes and the process group: SIGTERM, and SIGKILL after 3 s. It never rejects. */
  kill(call: SupervisedCall, group: number): Promise<void>;
  /** Kills all remaining commands and stops the watcher. */
  close(): Promise<void>;
}

/** Creates the supervisor. The replica ID marks commands, so it must be unique on the machine. Commands die before a lease of that length lapses. */
export function createSupervisor({ replicaId, leaseMs }: { replicaId: string; leaseMs: number }): Supervisor {
  const replica = `TOOLGATE_REPLICA=${replicaId}`;
  let watcher: Promise<Watcher> | undefined;
  let closed = false;
  let kills = 0;
  const onKilled = () => {
    kills += 1;
  };

  function watching(): Promise<Watcher> {
    if (closed) return Promise.reject(new Error("the service is stopping"));
    watcher ??= startWatcher({ replica, leaseMs, onExit: replace, onKilled }).catch((error: unknown) => {
      watcher = undefined;
      throw error;
    });
    return watcher;
  }

  /** Replaces a watcher that was killed at once, since commands may be running; if that fails, the next `watch` does it. */
  function replace(): void {
    watcher = undefined;
    watching().catch(() => {});
  }

  return {
    async watch(call) {
      await watching();
      return { TOOLGATE_REPLICA: replicaId, TOOLGATE_CALL: nameOf(call) };
    },
    kills: () => kills,
    async kill(call, group) {
      const entries = [replica, `TOOLGATE_CALL=${nameOf(call)}`];
      // Processes that cannot be listed now, as without a free descriptor, are looked for again.
      const find = () => processesWith(entries).catch(() => undefined);
      sendToGroup(group, "SIGTERM");
      for (const pid of (await find()) ?? []) send(pid, "SIGTERM");
      const patience = AbortSignal.timeout(3_000);
      while (!patience.aborted && (await find())?.length !== 0) await delay(50);
      sendToGroup(group, "SIGKILL");
      // Two empty rounds, since a process that is being created has no environment yet. Bounded, since a process that hangs in
      // the kernel dies only when it leaves it.
      for (let round = 0, empty = 0; round < 40 && empty < 2; round += 1) {
        const left = await find();
        for (const pid of left ?? []) send(pid, "SIGKILL");
        empty = left?.length === 0 ? empty + 1 : 0;
        await delay(25);
      }
    },
    async close() {
      closed = true;
      const last = await watcher?.catch(() => undefined);
      await last?.stop();
    },
  };
}

interface Watcher {
  stop(): Promise<void>;
}

/** Starts the watcher process, which outlives this one, from a thread: a busy main thread delays no heartbeat. */
async function startWatcher({
  replica,
  leaseMs,
  onExit,
  onKilled,
}: {
  replica: string;
  leaseMs: number;
  onExit: () => void;
  onKilled: () => void;
}): Promise<Watcher> {
  const workerData: SupervisorThreadData = {
    script: assets.supervisor,
    replica,
    // At a freeze at least two thirds of the lease are left; the watcher waits less, to have time for killing.
    patience: String((leaseMs * 0.6) / 1_000),
    heartbeatMs: leaseMs / 5,
  };
  const thread = new Worker(assets.supervisorThread, { workerData, env: {}, execArgv: [] });
  const { promise: exited, resolve: exit } = Promise.withResolvers<undefined>();
  const { promise: ready, resolve: begin } = Promise.withResolvers<true>();
  thread.on("message", (report: SupervisorReport) => {
    if (report === "ready") begin(true);
    else if (report === "killed") onKilled();
    else exit(undefined);
  });
  thread.once("error", () => exit(undefined)).once("exit", () => exit(undefined));
  if (!(await Promise.race([ready, exited])))
    throw new Error("the supervisor did not start: it needs /bin/bash and a readable /proc");
  thread.unref();
  void exited.then(onExit);
  return {
    async stop() {
      thread.ref();
      thread.postMessage("stop");
      await exited;
    },
  };
}

const nameOf = ({ sessionId, callId }: SupervisedCall) => `${sessionId}/${callId}`;

/** Lists the processes whose environment holds all of these entries. Those of other users can neither be read nor killed. */
async function processesWith(entries: readonly string[]): Promise<number[]> {
  const processes = await readProcesses("environ");
  return processes.flatMap(({ pid, text }) => {
    const held = text.split("\0");
    return entries.every((entry) => held.includes(entry)) ? pid : [];
  });
}

/** Reads a file of each process, which is empty for one that has ended or is another user's. Throws if too many files are open. */
export async function readProcesses(file: "environ" | "stat"): Promise<{ pid: number; text: string }[]> {
  const pids = (await readdir("/proc")).map(Number).filter(Number.isInteger);
  const read: { pid: number; text: string }[] = [];
  // A few at a time: there may be more processes than this one may open files.
  for (let at = 0; at < pids.length; at += maxOpen) {
    const some = pids.slice(at, at + maxOpen).map(async (pid) => {
      return { pid, text: await readFile(`/proc/${pid}/${file}`, "utf8").catch(emptyUnlessFull) };
    });
    read.push(...(await Promise.all(some)));
  }
  return read;
}

const maxOpen = 4;

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // The process has already ended.
  }
}

const sendToGroup = (group: number, signal: NodeJS.Signals) => send(-group, signal);
