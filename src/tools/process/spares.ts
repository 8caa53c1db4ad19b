import { closeSync } from "node:fs";
import { untilAborted, within } from "../../core/within.ts";
import type { SandboxPlace } from "../../sandbox/confinement.ts";
import type { Argv, Confined } from "../../sandbox/layers.ts";
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
  take(session: string, argv: Argv, env: Environment): WaitingSandbox | undefined;
  /**
   * Prepares one for a session unless one waits, as long as few wait. Returns at once; a failure only costs the time that it would have
   * saved. Each later command can read the variables that it is started with, so these hold nothing of a single call.
   */
  prepare(session: string, place: SandboxPlace, env: Environment): void;
  close(): Promise<void>;
}

/** Each takes 1.3 MiB. */
const maxWaiting = 4;
const maxWaitMs = 120_000;
/** Time without another attempt after one that failed: the workspace may be on another disk than the data, to which placeholders cannot be moved. */
const pauseMs = 60_000;
/** What any pipe holds at once, less what precedes it: the service must not wait for a shell. */
const maxBytes = 4_000;
const maxPrepareMs = 10_000;
/** Time in which a killed program is expected to end, unless it hangs in the kernel. */
const maxEndMs = 3_000;

/** Creates the waiting sandboxes of a replica. */
export function createSpares(
  { sandbox, supervisor, pipes }: { sandbox: Sandbox; supervisor: Supervisor; pipes: Pipes },
  waitMs = maxWaitMs,
): Spares {
  const waiting = new Map<string, WaitingSandbox>();
  const preparing = new Map<string, Promise<void>>();
  const endings = new Set<Promise<void>>();
  const closing = new AbortController();
  let pausedUntilMs = 0;

  async function open(session: string, place: SandboxPlace, env: Environment): Promise<void> {
    const marks = await supervisor.watch({ sessionId: session, callId: "next" });
    const before = { ...env, ...marks };
    if (!Object.keys(before).every((name) => isPlain.test(name))) return;
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
        const left = ending.finally(() => endings.delete(left));
        endings.add(left);
        return left;
      },
    };
    async function end() {
      // The pipe of a command closes with its output.
      if (!isTaken) closeSync(program.reader);
      // In the sandbox this ends all, since the reaper of its processes belongs to the group.
      if (isRunning) program.kill();
      await within(maxEndMs, hasExited, () => undefined);
      await spare.end();
    }
    const isReady = untilAborted(Promise.race([spare.ready, hasExited]), closing.signal).catch(String);
    const problem = await within(maxPrepareMs, isReady, () => "it is not ready");
    if (problem !== undefined) {
      await entry.end();
      throw new Error(problem);
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
    take(session, argv, env) {
      const entry = waiting.get(session);
      if (entry === undefined) return undefined;
      waiting.delete(session);
      const isShort = Buffer.byteLength(entry.spare.lines(argv, env)) <= maxBytes;
      if (isShort && Object.keys(env).every((name) => isPlain.test(name))) return entry;
      void entry.end();
      return undefined;
    },
    prepare(session, place, env) {
      if (closing.signal.aborted || waiting.has(session) || preparing.has(session)) return;
      if (waiting.size + preparing.size >= maxWaiting || Date.now() < pausedUntilMs) return;
      const opening = open(session, place, env)
        .catch(() => {
          pausedUntilMs = Date.now() + pauseMs;
        })
        .finally(() => preparing.delete(session));
      preparing.set(session, opening);
    },
    async close() {
      closing.abort();
      await Promise.all(preparing.values());
      const last = [...waiting.values()];
      waiting.clear();
      await Promise.all([...last.map((entry) => entry.end()), ...endings]);
    },
  };
}

/** Names that a shell takes for variables, and none that mean something to it. */
const isPlain =
  /^(?!(answer$|lines?$|n$|BASH|DIRSTACK|ENV$|E?UID|FUNCNAME|GROUPS|HIST|IFS|LINENO|MAIL|OLDPWD|OPT|PPID|PS[0-9]|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|_$))[A-Za-z_]\w*$/;
