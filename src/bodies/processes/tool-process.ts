import type { MessageInitShape } from "@bufbuild/protobuf";
import { SourceState } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import type { WorkerHello, WorkerLoadSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { openWorkerConnection, type WorkerConnection, type WorkerStreams } from "../worker-connection.ts";
import type { WorkerHost } from "../worker-tool.ts";

/** Code that a tool process loads, and the workspace in which it works. */
export interface ToolProcessPlace {
  /** The tool directory or the plugin file. */
  readonly path: string;
  readonly workspace: { readonly name: string; readonly directory: string };
}

/** A started process. */
export interface StartedToolProcess extends WorkerStreams {
  /** Returns the end of what it printed. */
  lastWords(): string;
  /** Returns the resident memory of the process and of those that it started. */
  memory(): Promise<number>;
  kill(): Promise<void>;
}

/** Starts the processes of tool files and plugins. */
export interface ToolProcessStarter {
  /** Describes what the processes can reach, for people. */
  readonly confinement: string;
  /** Returns the setting that an error of a tool may come from, for the model; undefined if none is known. */
  explain(text: string): string | undefined;
  /** `onStale` is called when the process can reach what rules forbid by now: the next call needs another one. */
  start(place: ToolProcessPlace, onStale: () => void): Promise<StartedToolProcess>;
  /** Called when a process ended although nobody stopped it. */
  crashed(place: ToolProcessPlace, reason: string): void;
  now(): number;
  /** Time after which a process without calls is stopped. */
  readonly idleMs: number;
}

/** The state of a process, for people. */
export interface ToolProcessState {
  state: SourceState;
  since: number;
  /** The reason why it does not run although it should; empty if there is none. */
  problem: string;
  restarts: number;
  /** Library and runtime with their versions; empty before the first start. */
  runtime: string;
}

/** A process that loads one version of files, and is started again when it is needed and does not run. */
export interface ToolProcess extends WorkerHost {
  /** Returns what it brings, starting it if it does not run. Throws if it cannot be loaded. */
  hello(): Promise<WorkerHello>;
  state(): ToolProcessState;
  memory(): Promise<number>;
  /** Reports whether it crashed and may be started again by now. */
  isDue(): boolean;
  /** Keeps it running although it is idle: its files have changed, so it could not be started again. */
  hold(): void;
  /** Stops it as soon as no call uses it. */
  retire(): void;
  close(): Promise<void>;
}

interface Running {
  readonly program: StartedToolProcess;
  readonly connection: WorkerConnection;
  readonly since: number;
  users: number;
}

interface State {
  readonly place: ToolProcessPlace;
  readonly starter: ToolProcessStarter;
  load: MessageInitShape<typeof WorkerLoadSchema>;
  /** The hello of the first start: each later one must bring the same. */
  first: WorkerHello | undefined;
  starting: Promise<Running> | undefined;
  running: Running | undefined;
  since: number;
  starts: number;
  /** Crashes since a process was of use. */
  failures: number;
  notBefore: number;
  problem: string;
  users: number;
  idle: NodeJS.Timeout | undefined;
  isHeld: boolean;
  isRetired: boolean;
}

const firstWaitMs = 1_000;
const maxWaitMs = 60_000;
/** A process that ran for so long before it crashed is started again at once. */
const stableMs = 60_000;

/** Creates a process; nothing is started yet. */
export function createToolProcess(
  place: ToolProcessPlace,
  load: MessageInitShape<typeof WorkerLoadSchema>,
  starter: ToolProcessStarter,
): ToolProcess {
  const state: State = {
    ...{ place, starter, load },
    ...{ first: undefined, starting: undefined, running: undefined, idle: undefined },
    ...{ since: starter.now(), starts: 0, failures: 0, notBefore: 0, problem: "", users: 0 },
    ...{ isHeld: false, isRetired: false },
  };
  const name = `The tool process of ${place.path}`;
  return {
    ...{ name, explain: starter.explain },
    async hello() {
      return await whileUsed(state, async () => (await runningOf(state)).connection.hello);
    },
    use: (work) =>
      whileUsed(state, async () => {
        const running = await runningOf(state).catch((cause: unknown) => {
          throw new ToolFailure(`${name} does not run, so nothing was run: ${messageOf(cause)}.`, {
            ...{ cause, hadNoEffects: true },
          });
        });
        return await workWith(state, running, work);
      }),
    state: () => describe(state),
    memory: async () => (await state.running?.program.memory()) ?? 0,
    isDue: () => state.problem !== "" && state.starting === undefined && !mustWait(state),
    hold() {
      state.isHeld = true;
      clearTimeout(state.idle);
    },
    retire() {
      state.isRetired = true;
      if (state.users === 0) void stop(state);
    },
    async close() {
      state.isRetired = true;
      await stop(state);
    },
  };
}

async function whileUsed<T>(state: State, work: () => Promise<T>): Promise<T> {
  state.users += 1;
  clearTimeout(state.idle);
  try {
    return await work();
  } finally {
    state.users -= 1;
    if (state.users === 0) whenUnused(state);
  }
}

/** Does work with a running process. One that another has replaced meanwhile ends with its last work. */
async function workWith<T>(
  state: State,
  running: Running,
  work: (connection: WorkerConnection) => Promise<T>,
): Promise<T> {
  running.users += 1;
  try {
    const result = await work(running.connection);
    // It is of use: its next crash is the first one.
    state.failures = 0;
    return result;
  } finally {
    running.users -= 1;
    if (running.users === 0 && state.running !== running) running.connection.end("another one has replaced it");
  }
}

function whenUnused(state: State): void {
  if (state.isRetired) return void stop(state);
  if (!state.isHeld) state.idle = setTimeout(() => void stop(state), state.starter.idleMs).unref();
}

function runningOf(state: State): Promise<Running> {
  state.starting ??= start(state).catch((error: unknown) => {
    fail(state, messageOf(error));
    throw error;
  });
  return state.starting;
}

async function start(state: State): Promise<Running> {
  const { starter, place, load } = state;
  const now = starter.now();
  // The failure stays as it is: this was no attempt.
  if (mustWait(state)) throw new Error(`${state.problem}. The next start follows in ${secondsUntil(state)} s`);
  state.starts += 1;
  state.since = now;
  let running: Running | undefined;
  let isStale = false;
  const program = await starter.start(place, () => {
    isStale = true;
    replaceStale(state, running);
  });
  try {
    const connection = await openWorkerConnection(program, load);
    checkSame(state.first, connection.hello);
    state.first ??= connection.hello;
    state.load = { ...load, expected: { ...load.expected, ...hashesOf(state.first) } };
    const started: Running = { program, connection, since: starter.now(), users: 0 };
    // It reaches what it may not, and that is reported once.
    if (isStale) throw new Error("rules or files changed while it started");
    running = started;
    connection.ended.throwIfAborted();
    connection.ended.addEventListener("abort", () => onEnded(state, started), { once: true });
    Object.assign(state, { running, problem: "", since: running.since });
    return started;
  } catch (error) {
    await program.kill();
    throw new Error(withWords(messageOf(error), program), { cause: error });
  }
}

/** Lets the next call start another process; this one ends when no call uses it. */
function replaceStale(state: State, running: Running | undefined): void {
  if (running === undefined || state.running !== running) return;
  state.starting = undefined;
  state.running = undefined;
  state.since = state.starter.now();
  if (running.users === 0) running.connection.end("rules or files have changed");
}

/** Maps the loaded files to the SHA-256 of what was loaded. */
export function hashesOf({ files }: WorkerHello): Record<string, string> {
  return Object.fromEntries(files.map(({ path, sha256 }) => [path, sha256]));
}

/** Throws if a later start does not bring what the first one did: calls refer to that. */
function checkSame(first: WorkerHello | undefined, { tools, plugins, problems }: WorkerHello): void {
  if (first === undefined) return;
  const keyOf = ({ name, source }: { name: string; source: string }) => `${name} ${source}`;
  const present = new Set(tools.map(keyOf));
  const hooks = (list: WorkerHello["plugins"]) => JSON.stringify(list.map(({ name, hooks }) => [name, hooks]));
  if (first.tools.every((tool) => present.has(keyOf(tool))) && hooks(first.plugins) === hooks(plugins)) return;
  throw new Error(problems[0]?.reason ?? "it does not bring the same tools as before");
}

function onEnded(state: State, running: Running): void {
  const { program, connection, since } = running;
  void program.kill();
  // A process that was stopped did not crash.
  if (state.running !== running) return;
  if (state.starter.now() - since >= stableMs) state.failures = 0;
  fail(state, withWords(`it ended: ${messageOf(connection.ended.reason)}`, program));
  state.starter.crashed(state.place, state.problem);
}

/** Notes a failed start or a crash. The first start after a crash follows at once, later ones after a while. */
function fail(state: State, problem: string): void {
  const { starter } = state;
  state.starting = undefined;
  state.running = undefined;
  if (mustWait(state)) return;
  state.problem = problem;
  state.since = starter.now();
  state.failures += 1;
  const waitMs = state.failures === 1 ? 0 : Math.min(maxWaitMs, firstWaitMs * 2 ** (state.failures - 2));
  state.notBefore = starter.now() + waitMs;
}

async function stop(state: State): Promise<void> {
  clearTimeout(state.idle);
  const running = state.running ?? (await state.starting?.catch(() => undefined));
  state.starting = undefined;
  state.running = undefined;
  state.since = state.starter.now();
  running?.connection.end("the service stopped it");
  await running?.program.kill();
}

function describe(state: State): ToolProcessState {
  const { since, problem, starts, first, running, starting } = state;
  const waits = problem === "" ? SourceState.IDLE : SourceState.WAITING;
  const present = running ? SourceState.READY : starting ? SourceState.CONNECTING : waits;
  return { state: present, since, problem, restarts: Math.max(0, starts - 1), runtime: first?.sdk ?? "" };
}

function withWords(reason: string, { lastWords }: StartedToolProcess): string {
  const words = lastWords();
  return words === "" ? reason : `${reason}; it printed last: ${words}`;
}

/** Checks if the next start is still to come. A clock that was set back does not prolong the wait. */
function mustWait({ notBefore, starter }: State): boolean {
  const leftMs = notBefore - starter.now();
  return leftMs > 0 && leftMs <= maxWaitMs;
}

const secondsUntil = ({ notBefore, starter }: State) => Math.ceil((notBefore - starter.now()) / 1_000);
const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
