import { closeSync } from "node:fs";
import { basename, relative } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Ask } from "../../core/ask.ts";
import { isWithin } from "../../core/paths.ts";
import { visible } from "../../core/visible.ts";
import { untilAborted, within } from "../../core/within.ts";
import type { SandboxPlace } from "../../sandbox/confinement.ts";
import type { Spare } from "../../sandbox/gate.ts";
import { gitSettings } from "../../sandbox/git-settings.ts";
import type { Argv, Confined, Covered, CoveredPaths } from "../../sandbox/layers.ts";
import { TooManyMounts } from "../../sandbox/plan-files.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { type CommandRun, launch, notRun, type Pipes } from "./run-command.ts";
import type { Supervisor } from "./supervisor.ts";

/** Confines a command. Asks if it could reach more restricted files than the sandbox can cover one by one. */
export async function confineCommand(
  sandbox: Pick<Sandbox, "confine">,
  argv: Argv,
  place: SandboxPlace,
  ask: (ask: Ask) => Promise<void>,
  spare?: Spare,
): Promise<Confined> {
  try {
    return await sandbox.confine(argv, place, spare);
  } catch (cause) {
    if (!(cause instanceof TooManyMounts))
      throw notRun("The command was not run, since its sandbox cannot be prepared", cause);
    const { files, workspace } = place;
    if (files === undefined) throw cause;
    await ask(askForAll(cause, workspace));
    const allowed = cause.use === "read" ? { mayRead: true } : { mayEdit: true };
    return await confineCommand(sandbox, argv, { ...place, files: { ...files, ...allowed } }, ask, spare);
  }
}

function askForAll({ use, count, maxMasks }: TooManyMounts, workspace: string): Ask {
  const verb = use === "read" ? "read" : "changed";
  const effect = use === "read" ? "can read all of them" : "can change the others";
  const what =
    count === undefined
      ? "holds directories that cannot be searched for files that may not be read: they are too many, or a name is not UTF-8"
      : `holds ${count} files that may not be ${verb}, and the sandbox can cover ${maxMasks}`;
  return {
    permission: use,
    patterns: ["."],
    paths: [workspace],
    alwaysAsk: `${what}; if you allow it, the command ${effect}`,
    ...(count !== undefined && { metadata: { files: count } }),
  };
}

/** Covered paths in results: their number, and the first ones. */
export interface ShownCovered {
  count: number;
  paths: string[];
}

const maxShown = 10;

/** Describes covered paths for people: relative to the workspace, with the invisible made visible; a directory ends with `/`. */
export function shownPaths(covered: readonly Covered[], workspace: string): ShownCovered {
  const shown = covered
    .slice(0, maxShown)
    .map(({ path, isDirectory }) => `${shownPath(path, workspace)}${isDirectory ? "/" : ""}`);
  return { count: covered.length, paths: shown };
}

/** Time in which a preview has to know what a command does not see. */
const maxPreviewMs = 2_000;

/** Returns what a command would not see, for its approver; undefined if that is nothing, or not known soon. */
export async function hiddenPaths(
  sandbox: Pick<Sandbox, "hiddenFrom">,
  place: SandboxPlace,
): Promise<ShownCovered | undefined> {
  // A command for which files cannot be hidden asks about that when it starts.
  const known = sandbox.hiddenFrom(place).catch(() => []);
  const hidden = await within(maxPreviewMs, known, () => []);
  return hidden.length === 0 ? undefined : shownPaths(hidden, place.workspace);
}

/** Describes a path for results: relative to the workspace, with the invisible made visible. */
export function shownPath(path: string, workspace: string): string {
  return visible(isWithin(path, workspace) ? relative(workspace, path) || "." : path);
}

/** Errors by which programs report a covered path. */
const refusals = /Permission denied|Read-only file system|Device or resource busy|EACCES|EROFS|EBUSY/;
/** Errors by which they report a path that is absent outside, since inside an empty directory is there. */
const absentRefusals = /Is a directory|File exists|EISDIR|EEXIST|not an empty directory/;
const maxNoted = 3;

/**
 * Explains errors of a command that come from its sandbox: for each covered path that its last output names, the rule and the
 * next step. Undefined if there is none.
 */
export function explainRefusals(
  tail: string,
  { hidden, readOnly, absent }: CoveredPaths,
  workspace: string,
): string | undefined {
  const isRefused = refusals.test(tail);
  const named = (covered: readonly Covered[], isMeant = isRefused) =>
    isMeant ? covered.filter(({ path }) => tail.includes(basename(path))) : [];
  const next = (path: string) => `Call again with edits: [${JSON.stringify(shownPath(path, workspace))}], which asks.`;
  const lines = [
    ...named(hidden).map(
      ({ path, reason }) =>
        `${shownPath(path, workspace)} is hidden from this command: ${visible(reason)}. Use the read tool, which asks if rules allow that.`,
    ),
    ...named(readOnly).map(
      ({ path, reason }) =>
        `${shownPath(path, workspace)} is read-only for this command: ${visible(reason)}. ${next(path)}`,
    ),
    ...named(absent, isRefused || absentRefusals.test(tail)).map(
      ({ path, reason }) =>
        `${shownPath(path, workspace)} does not exist, and this command may not make it (inside an empty directory takes its place): ${visible(reason)}. ${next(path)}`,
    ),
  ];
  return lines.length === 0 ? undefined : lines.slice(0, maxNoted).join("\n");
}

/** Returns the environment of a command. Drops relative parts of PATH, which would search whatever directory a command runs in. */
export function environmentOf(added: Readonly<Record<string, string>>): Record<string, string> & { PATH: string } {
  const env = { ...inherited(), ...added };
  return {
    ...env,
    ...gitEnvironment(env),
    PATH: env.PATH.split(":")
      .filter((directory) => directory.startsWith("/"))
      .join(":"),
  };
}

/** Returns the search path of commands to which nobody adds variables. */
export const commandSearchPath = () => environmentOf({}).PATH;

/** Selects the variables of the service's environment that commands inherit: none that could hold a secret. */
function inherited(): Record<string, string> & { PATH: string } {
  const names = ["HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "PATH"];
  const selected = Object.entries(process.env).flatMap(([name, value]) =>
    value !== undefined && (names.includes(name) || name.startsWith("LC_")) ? [[name, value] as const] : [],
  );
  return {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ...Object.fromEntries(selected),
    TERM: "dumb",
  };
}

/** Returns the variables that harden git, after settings that the environment has already. */
function gitEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const given = Number(env.GIT_CONFIG_COUNT ?? 0);
  const first = Number.isInteger(given) && given >= 0 ? given : 0;
  const entries = gitSettings.flatMap(([name, value], i) => [
    [`GIT_CONFIG_KEY_${first + i}`, name],
    [`GIT_CONFIG_VALUE_${first + i}`, value],
  ]);
  return { ...Object.fromEntries(entries), GIT_CONFIG_COUNT: String(first + gitSettings.length) };
}

type Environment = Readonly<Record<string, string>>;

/** A sandbox that waits for the next command of a session, and the program that waits in it. */
export interface WaitingSandbox {
  readonly spare: Spare;
  /** Returns the program that becomes a confined command; undefined, and ends it, if the sandbox is not that of the command. */
  become(confined: Confined, env: Environment): CommandRun["waiting"];
  /** Ends the program, unless it has ended, and frees what the sandbox holds. */
  end(): Promise<void>;
}

/** Sandboxes that wait: one for each of a few open sessions, for a short time. */
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
/** Time between two looks whether its session is closed, here or at another replica. */
const lookMs = 1_000;
/** Time without another attempt after one that failed: the workspace may be on another disk than the data, to which placeholders cannot be moved. */
const pauseMs = 60_000;
/** Maximum size of the lines of a command: any pipe holds so much at once, and the service must not wait for a shell. */
const maxBytes = 4_000;
const maxPrepareMs = 10_000;
/** Time in which a killed program is expected to end, unless it hangs in the kernel. */
const maxEndMs = 3_000;

/** Creates the waiting sandboxes of a replica. */
export function createSpares(
  {
    sandbox,
    supervisor,
    pipes,
    isOpen,
  }: { sandbox: Sandbox; supervisor: Supervisor; pipes: Pipes; isOpen(session: string): Promise<boolean> },
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
    const isWaiting = () => waiting.get(session) === entry;
    const expire = () => isWaiting() && waiting.delete(session) && void entry.end();
    void hasExited.then(expire);
    void lapse(session, isWaiting).then(expire);
  }

  /** Resolves when nothing waits any more, or when it waited for long or its session is closed. */
  async function lapse(session: string, isWaiting: () => boolean): Promise<void> {
    const lastMs = performance.now() + waitMs;
    // A store that fails or does not answer ends it, too.
    const look = () => within(lookMs, isOpen(session), () => false).catch(() => false);
    while (isWaiting() && performance.now() < lastMs && (await look()))
      await delay(Math.min(lookMs, waitMs), undefined, { ref: false });
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
