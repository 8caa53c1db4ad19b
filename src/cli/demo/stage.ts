import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { locateProgram } from "../../core/locate-program.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

/** A running service. */
export interface StageReplica {
  /** Its name in sentences, such as `replica A`. */
  readonly name: string;
  readonly url: string;
  readonly signInCode: string;
}

/** The surroundings of the demo: services in processes of their own, and a directory for all of their files. */
export interface Stage {
  /** True if replicas share a Redis; otherwise there is one service, on SQLite. */
  readonly isReplicated: boolean;
  readonly directory: string;
  readonly workspace: string;
  /** The agent's has the role `approver` too: its answer is refused because the call is its own. */
  readonly tokens: { readonly agent: string; readonly person: string };
  /** The service that accepts the agent's call. */
  readonly first: StageReplica;
  /** Kills the first service and returns the one that goes on: the other replica or, on SQLite, the same one started again. */
  crash(): Promise<StageReplica>;
  /** Runs a command of this program as the person, and returns what it printed. */
  run(at: StageReplica, ...args: readonly string[]): Promise<{ code: number; stdout: string; stderr: string }>;
}

/** What a stage needs of the command line. */
export interface StageSetting {
  /** The words that run this program. */
  readonly program: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  /** Ends what the stage waits for. */
  readonly signal: AbortSignal;
}

/** Finds the Redis that a stage would start. */
export function findRedis({ PATH }: NodeJS.ProcessEnv): string | undefined {
  return locateProgram("redis-server", PATH);
}

/** Sets up a stage and runs the body on it; then ends all of its processes and removes its files, however the body ended. */
export async function onStage<T>(
  { program, env, signal }: StageSetting,
  body: (stage: Stage) => Promise<T>,
): Promise<T> {
  await using ends = new AsyncDisposableStack();
  const directory = await mkdtemp(join(tmpdir(), "toolgate-demo-"));
  ends.defer(() => rm(directory, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 }));
  const launch = (words: readonly string[], more: NodeJS.ProcessEnv = {}): Launched => {
    const child = launchIn(directory, words, { ...withoutSettings(env), ...more });
    ends.defer(() => stop(child));
    return child;
  };

  const redis = findRedis(env);
  const isReplicated = redis !== undefined;
  const socket = join(directory, "redis.sock");
  if (isReplicated) {
    const settings = ["--port", "0", "--unixsocket", socket, "--save", "", "--maxmemory-policy", "noeviction"];
    await lineOf(launch([redis, ...settings]), redis, /ready to accept connections/i, signal);
  }
  const workspace = join(directory, "project");
  await mkdir(workspace);
  const tokens = { agent: randomToken(), person: randomToken() };
  const config = join(directory, "toolgate.toml");
  await writeFile(config, configuration(tokens, isReplicated ? socket : undefined), { mode: 0o600 });

  async function start(name: string, data: string): Promise<StageReplica & { child: Launched }> {
    const place = ["--workspace", workspace, "--config", config, "--data", join(directory, data)];
    const child = launch([...program, "serve", "--json", "--listen", "127.0.0.1:0", ...place]);
    const { url, sign_in_code: signInCode } = JSON.parse(await lineOf(child, name, /^\{"url":/, signal));
    return { name, url, signInCode, child };
  }

  const [first, other] = await Promise.all([
    start(isReplicated ? "replica A" : "the service", "a"),
    isReplicated ? start("replica B", "b") : undefined,
  ]);
  return await body({
    ...{ isReplicated, directory, workspace, tokens, first },
    async crash() {
      first.child.kill("SIGKILL");
      await once(first.child, "exit");
      return other ?? (await start("the restarted service", "a"));
    },
    async run({ url }, ...args) {
      const child = launch([...program, ...args], { TOOLGATE_URL: url, TOOLGATE_TOKEN: tokens.person });
      const [[code], stdout, stderr] = await Promise.all([once(child, "exit"), text(child.stdout), text(child.stderr)]);
      return { code, stdout, stderr };
    },
  });
}

/** The environment without the settings of a Toolgate that is used here. */
function withoutSettings(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith("TOOLGATE_")));
}

function randomToken(): string {
  return randomBytes(24).toString("base64url");
}

function configuration({ agent, person }: Stage["tokens"], socket: string | undefined): string {
  const token = (id: string, roles: readonly string[], value: string) =>
    `[[token]]\nid = "${id}"\nroles = ${JSON.stringify(roles)}\nvalue = "${value}"\n`;
  const store = socket === undefined ? "" : `store = ${JSON.stringify(`redis+unix://${socket}`)}\n`;
  return [store, token("agent", ["caller", "approver"], agent), token("person", ["approver"], person)].join("");
}

/** A program whose output is read. */
type Launched = ReturnType<typeof launchIn>;

function launchIn(cwd: string, [program = "", ...args]: readonly string[], env: NodeJS.ProcessEnv) {
  // Detached: Ctrl-C at the terminal reaches only the demo, which ends the others in order.
  return spawn(program, args, { cwd, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
}

/** Waits for a line, and drops the later ones. A program that ends first fails with the error and the next step that it printed. */
async function lineOf(child: Launched, name: string, wanted: RegExp, signal: AbortSignal): Promise<string> {
  const printed: string[] = [];
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const read = (line: string) => {
    if (wanted.test(line)) resolve(line);
    else printed.push(line);
  };
  for (const input of [child.stdout, child.stderr]) createInterface({ input }).on("line", read);
  child.once("error", ({ message }) => reject(notStarted(name, [message])));
  child.once("close", () => reject(notStarted(name, printed)));
  const abort = () => reject(signal.reason);
  if (signal.aborted) abort();
  signal.addEventListener("abort", abort, { once: true });
  return await promise;
}

function notStarted(name: string, printed: readonly string[]): CommandError {
  const last = (start: string) => printed.findLast((line) => line.startsWith(start))?.slice(start.length);
  const problem = last("error: ") ?? printed.at(-1) ?? "it printed nothing";
  const next = last(" next: ") ?? "correct that, and run the demo again";
  return new CommandError(`${name} did not start: ${terminalSafe(problem)}`, terminalSafe(next), exitCodes.failed);
}

/** Ends a program in order, and by force if that takes long. */
async function stop(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, "exit");
  child.kill("SIGTERM");
  const late = setTimeout(() => child.kill("SIGKILL"), maxStopMs);
  await exited;
  clearTimeout(late);
}

const maxStopMs = 5_000;
