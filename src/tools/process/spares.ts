import { closeSync } from "node:fs";
import type { SandboxPlace } from "../../sandbox/confinement.ts";
import type { Confined } from "../../sandbox/layers.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { Spare } from "../../sandbox/spare.ts";
import { type CommandRun, launch, type Pipes } from "./run-command.ts";
import type { Supervisor } from "./supervisor.ts";

type Environment = Readonly<Record<string, string>>;

/** A sandbox that waits for the next command of a session, and the program that waits in it. */
export interface WaitingSandbox {
  readonly spare: Spare;
  /** Returns the program that becomes a confined command; undefined, and ends it, if the sandbox is not that of the command. */
  become(confined: Confined, env: Environment): CommandRun["waiting"];
  /** Ends the program, unless it has ended, and frees what the sandbox holds. */
  end(): Promise<void>;
}

/** Sandboxes that wait: one for each of a few sessions, for a short time. */
export interface Spares {
  /** Takes the one of a session; undefined if none waits, or if it could not become this command. The caller ends it. */
  take(session: string, command: string, env: Environment): WaitingSandbox | undefined;
  /** Prepares one for a session unless one waits, as long as few wait. Returns at once; a failure only costs the time that it would have saved. */
  prepare(session: string, place: SandboxPlace, env: Environment): void;
  close(): Promise<void>;
}

/** Each takes 1.3 MiB. */
const maxWaiting = 4;
const maxWaitMs = 120_000;
/** Time without another attempt after one that failed: the workspace may be on another disk than the data, to which placeholders cannot be moved. */
const pauseMs = 60_000;
/** The command goes through a pipe at once, and a shell reads it byte by byte. */
const maxBytes = 16_384;

/** Creates the waiting sandboxes of a replica. */
export function createSpares(
  { sandbox, supervisor, pipes }: { sandbox: Sandbox; supervisor: Supervisor; pipes: Pipes },
  waitMs = maxWaitMs,
): Spares {
  const waiting = new Map<string, WaitingSandbox>();
  const preparing = new Map<string, Promise<void>>();
  let isClosed = false;
  let pausedUntilMs = 0;

  async function open(session: string, place: SandboxPlace, env: Environment): Promise<void> {
    const marks = await supervisor.watch({ sessionId: session, callId: "next" });
    const before = { ...env, ...marks };
    const spare = await sandbox.prepare(place, before);
    if (spare) await start(session, spare, place.cwd, before);
  }

  async function start(session: string, spare: Spare, cwd: string, before: Environment): Promise<void> {
    const { argv, descriptors } = spare;
    const program = await launch({ argv, cwd, env: { ...before, ...spare.env }, descriptors, pipes }).catch(
      async (error: unknown) => {
        await spare.end();
        throw error;
      },
    );
    let [isTaken, isRunning] = [false, true];
    const hasExited = program.exited.then(() => {
      isRunning = false;
      return "it has exited";
    });
    let ending: Promise<void> | undefined;
    const entry: WaitingSandbox = {
      spare,
      become({ begin, env: added }, env) {
        if (begin === undefined) return void entry.end();
        const beginOnce = () => {
          isTaken = true;
          begin({ ...env, ...added });
        };
        return { program, begin: beginOnce };
      },
      end() {
        ending ??= end();
        return ending;
      },
    };
    async function end() {
      // The pipe of a command closes with its output.
      if (!isTaken) closeSync(program.reader);
      // In the sandbox this ends all, since the reaper of its processes belongs to the group.
      if (isRunning) program.kill();
      await hasExited;
      await spare.end();
    }
    const problem = await Promise.race([spare.ready.catch(String), hasExited]);
    if (problem !== undefined || isClosed) {
      await entry.end();
      throw new Error(problem ?? "the service is stopping");
    }
    waiting.set(session, entry);
    const expire = () => waiting.get(session) === entry && waiting.delete(session) && void entry.end();
    const timer = setTimeout(expire, waitMs).unref();
    void hasExited.then(() => {
      clearTimeout(timer);
      expire();
    });
  }

  return {
    take(session, command, env) {
      const entry = waiting.get(session);
      if (entry === undefined) return undefined;
      waiting.delete(session);
      const bytes = [command, ...Object.values(env)].reduce((sum, text) => sum + Buffer.byteLength(text), 0);
      if (bytes <= maxBytes && Object.keys(env).every((name) => isPlain.test(name))) return entry;
      void entry.end();
      return undefined;
    },
    prepare(session, place, env) {
      if (isClosed || waiting.has(session) || preparing.has(session)) return;
      if (waiting.size + preparing.size >= maxWaiting || Date.now() < pausedUntilMs) return;
      const opening = open(session, place, env)
        .catch(() => {
          pausedUntilMs = Date.now() + pauseMs;
        })
        .finally(() => preparing.delete(session));
      preparing.set(session, opening);
    },
    async close() {
      isClosed = true;
      await Promise.all(preparing.values());
      const last = [...waiting.values()];
      waiting.clear();
      await Promise.all(last.map((entry) => entry.end()));
    },
  };
}

/** Names that a shell takes for variables, and none that mean something to it. */
const isPlain =
  /^(?!(BASH|DIRSTACK|ENV$|E?UID|FUNCNAME|GROUPS|HIST|IFS|LINENO|MAIL|OLDPWD|OPT|PPID|PS[0-9]|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|_$))[A-Za-z_]\w*$/;
