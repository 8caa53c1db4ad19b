import type { Ask } from "../../core/ask.ts";
import type { CodeSettings, LanguageServer } from "../../core/language-server.ts";
import { isWithin, workspaceRoot } from "../../core/paths.ts";
import { visible } from "../../core/visible.ts";
import { within } from "../../core/within.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Workspace } from "../../tool/workspace.ts";
import { ServerEnded } from "./connection.ts";
import { watchProject } from "./documents.ts";
import {
  type FoundCommand,
  findCommand,
  projectRoot,
  type ServerPlace,
  type ServerStarter,
  serverFor,
  wantedPrograms,
} from "./find-server.ts";
import { introduceClient, type LanguageClient } from "./language-client.ts";

const idleMs = 300_000;
/** Deaths within this time after which a server is not started again. */
const maxDeaths = 3;
const deathsMs = 300_000;
/** Time that a call waits for a server that starts. */
const startMs = 20_000;

/** Dependencies of the language servers. */
export interface LanguageServerParts {
  /** The settings in force, which a reload replaces. */
  readonly settings: Pick<CodeSettings, "languageServers">;
  readonly starter: ServerStarter;
  /** Search path of programs. */
  readonly searchPath: string;
  /** Reports whether the code of a workspace root is trusted. */
  isTrusted(workspaceRoot: string): Promise<boolean>;
  warn(message: string, about: { server: string; reason: string }): void;
}

/** State of a server for one project. */
interface Known {
  readonly place: ServerPlace;
  client?: LanguageClient | undefined;
  starting?: Promise<LanguageClient> | undefined;
  /** Times of its last deaths. */
  deaths: number[];
  problem: string;
  idle?: NodeJS.Timeout | undefined;
}

/** The language servers of a replica: one process for each project and server, started on first use. */
export interface LanguageServers {
  /** The servers in force. */
  readonly all: readonly LanguageServer[];
  /** Finds the server and the project of a file; undefined without a server for such files. */
  placeOf(path: string, workspace: Workspace): ServerPlace | undefined;
  /** True if it runs or starts. */
  isRunning(place: ServerPlace): boolean;
  /** Returns the command line that would run; undefined if no program is installed. */
  commandOf(place: ServerPlace): Promise<FoundCommand | undefined>;
  /** Returns the failure of a server for which there is no command line. */
  missing(place: ServerPlace): Promise<ToolFailure>;
  /** Makes the ask to start a server; none if it runs, or if its workspace is trusted. */
  startAsks(place: ServerPlace): Promise<Ask[]>;
  /** Returns the running server, or starts it. Throws `ToolFailure` with the reason if it cannot. */
  client(place: ServerPlace, signal?: AbortSignal): Promise<LanguageClient>;
  /** Returns the server if it runs. */
  running(place: ServerPlace): LanguageClient | undefined;
  /** Notes that tools have changed a file. */
  changed(path: string): void;
  close(): Promise<void>;
}

/** State of the language servers of a replica. */
interface ServerPool {
  readonly parts: LanguageServerParts;
  readonly known: Map<string, Known>;
  isClosed: boolean;
}

/** Creates the language servers; nothing is started before it is used. */
export function createLanguageServers(parts: LanguageServerParts): LanguageServers {
  const pool: ServerPool = { parts, known: new Map(), isClosed: false };
  const { known } = pool;
  const isRunning = (place: ServerPlace) => {
    const { client, starting } = knownOf(pool, place);
    return (client ?? starting) !== undefined;
  };
  return {
    get all() {
      return parts.settings.languageServers;
    },
    placeOf(path, { directory, name }) {
      const server = serverFor(parts.settings.languageServers, path);
      if (server === undefined) return undefined;
      const root = projectRoot(server, path, directory);
      return { server, root, workspace: directory, workspaceRoot: workspaceRoot(name) };
    },
    isRunning,
    commandOf: (place) => commandOf(parts, place),
    missing: (place) => missingProgram(parts, place),
    startAsks: async (place) => (isRunning(place) ? [] : await startAsks(parts, place)),
    client: (place, signal) => useServer(pool, place, signal),
    running: (place) => knownOf(pool, place).client,
    changed(path) {
      for (const { client, place } of known.values()) if (isWithin(path, place.root)) client?.changes.add(path);
    },
    async close() {
      pool.isClosed = true;
      for (const { idle } of known.values()) clearTimeout(idle);
      const all = [...known.values()].map(async (one) => {
        const client = one.client ?? (await one.starting?.catch(() => undefined));
        await client?.connection.close();
      });
      await Promise.allSettled(all);
    },
  };
}

function knownOf({ known }: ServerPool, place: ServerPlace): Known {
  const key = [place.server.name, place.root, place.workspace].join("\0");
  const found = known.get(key) ?? { deaths: [], problem: "", place };
  known.set(key, found);
  return found;
}

/** Returns the server of a place, started if it does not run. */
async function useServer(
  pool: ServerPool,
  place: ServerPlace,
  signal: AbortSignal | undefined,
): Promise<LanguageClient> {
  const one = knownOf(pool, place);
  if (pool.isClosed)
    throw new ToolFailure("The service stops, so no language server is started.", { hadNoEffects: true });
  restartTimer(one);
  if (one.client !== undefined) return one.client;
  if (one.starting === undefined) {
    checkDeaths(one);
    const starting = startServer(pool, one);
    one.starting = starting;
    const done = () => {
      one.starting = undefined;
    };
    void starting.then((client) => {
      done();
      takeIntoUse(pool, one, client);
    }, done);
  }
  return await inTime(one.starting, place.server.name, signal);
}

async function startServer(pool: ServerPool, one: Known): Promise<LanguageClient> {
  const { parts } = pool;
  const { server, ...directories } = one.place;
  const command = await commandOf(parts, one.place);
  if (command === undefined) throw await missingProgram(parts, one.place);
  // First, so that no change is missed that is made while the server reads the project.
  const changes = await watchProject(directories.root);
  let stale: string | undefined;
  try {
    const program = await parts.starter.start({
      ...{ name: server.name, argv: command.argv, env: server.env, ...directories },
      onStale(reason) {
        stale = reason;
        one.client?.connection.end(reason, true);
      },
    });
    const client = await introduceClient(server, directories.root, program, changes);
    if (stale !== undefined) client.connection.end(stale, true);
    one.problem = "";
    return client;
  } catch (error) {
    changes.close();
    recordDeath(pool, one, error instanceof ServerEnded ? error.why : String(error));
    throw error;
  }
}

/** Uses a server until it ends. */
function takeIntoUse(pool: ServerPool, one: Known, client: LanguageClient): void {
  one.client = client;
  void client.connection.ended.then(({ reason, isExpected }) => {
    if (one.client === client) one.client = undefined;
    client.changes.close();
    if (!isExpected) recordDeath(pool, one, reason);
  });
  if (pool.isClosed) void client.connection.close();
}

function recordDeath({ parts }: ServerPool, one: Known, reason: string): void {
  const now = Date.now();
  one.deaths = [...one.deaths.filter((at) => now - at < deathsMs), now];
  one.problem = visible(reason);
  parts.warn("a language server ended", { server: one.place.server.name, reason: one.problem });
}

function restartTimer(one: Known): void {
  clearTimeout(one.idle);
  one.idle = setTimeout(() => {
    const { client } = one;
    one.client = undefined;
    void client?.connection.close();
  }, idleMs).unref();
}

const recentDeaths = ({ deaths }: Known) => deaths.filter((at) => Date.now() - at < deathsMs).length;

function checkDeaths(one: Known): void {
  if (recentDeaths(one) < maxDeaths) return;
  const { name, install } = one.place.server;
  throw new ToolFailure(
    `The language server ${name} is broken: it ended ${maxDeaths} times within ${deathsMs / 60_000} minutes, and is not started again for some minutes. Last: ${one.problem}. If its program is damaged, install it again: ${install}`,
    { hadNoEffects: true },
  );
}

/** Finds the command line of a server. Programs of the workspace run only where it is trusted, and only in the sandbox. */
async function commandOf(
  { starter, searchPath, isTrusted }: LanguageServerParts,
  place: ServerPlace,
): Promise<FoundCommand | undefined> {
  const usesLocal = starter.isConfined() && (await isTrusted(place.workspaceRoot));
  return findCommand(place, { searchPath, usesLocal });
}

async function startAsks(parts: LanguageServerParts, place: ServerPlace): Promise<Ask[]> {
  const missing = parts.starter.missingSandbox();
  if (missing === undefined && (await parts.isTrusted(place.workspaceRoot))) return [];
  const command = await commandOf(parts, place);
  // Nothing starts, so nothing is asked.
  if (command === undefined) return [];
  const { server, root } = place;
  return [
    {
      permission: "lsp_server",
      patterns: [server.name],
      always: [server.name],
      metadata: { server: server.name, command: command.argv.join(" "), root },
      ...(missing !== undefined && { alwaysAsk: `runs without a sandbox, since ${missing}` }),
    },
  ];
}

/** Makes the failure of a server whose program is missing, or may not run as long as its workspace is not trusted. */
async function missingProgram(
  { starter, searchPath, isTrusted }: LanguageServerParts,
  place: ServerPlace,
): Promise<ToolFailure> {
  const { name, commands, install } = place.server;
  const own = await findCommand(place, { searchPath, usesLocal: true });
  if (own !== undefined && starter.isConfined() && !(await isTrusted(place.workspaceRoot)))
    return new ToolFailure(
      `The language server ${name} is in the workspace (${own.argv[0]}), whose code is not trusted, so it was not started. The operator can trust it: toolgate trust ${place.workspace}`,
      { hadNoEffects: true },
    );
  return new ToolFailure(
    `The language server ${name} is not installed: there is no ${wantedPrograms(commands)}. Install it: ${install}`,
    { hadNoEffects: true },
  );
}

/** Waits for a server that starts; it goes on starting if that takes too long. */
async function inTime(
  starting: Promise<LanguageClient>,
  name: string,
  signal: AbortSignal | undefined,
): Promise<LanguageClient> {
  const { promise: stopped, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal?.reason);
  signal?.addEventListener("abort", onAbort, { once: true });
  const late = () => {
    throw stillStarting(name);
  };
  return await within(startMs, Promise.race([starting, stopped]), late).finally(() =>
    signal?.removeEventListener("abort", onAbort),
  );
}

const stillStarting = (name: string) =>
  new ToolFailure(`The language server ${name} is still starting. Call the tool again in a few seconds.`, {
    hadNoEffects: true,
  });
