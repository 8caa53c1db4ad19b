import { SourceState } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { McpConnection, McpTransports } from "./mcp-connection.ts";
import { type McpDefinition, readDefinition } from "./mcp-definition.ts";

/** An MCP server as the configuration names it. */
export interface UpstreamSettings {
  readonly name: string;
  /** The program with its arguments, or the address, for people. */
  readonly origin: string;
  /** Reports whether the configuration offers a tool, by its name at the server. */
  offers(original: string): boolean;
  /** Templates of what a call asks for, by the name of the tool at the server. */
  readonly patterns: ReadonlyMap<string, string>;
  /** True if what the server says of the effects of its tools counts. */
  readonly isTrusted: boolean;
  /** Time without progress after which a call fails. */
  readonly timeoutMs: number;
}

/** Opens connections to a server. */
export interface UpstreamOpener {
  /** Reach of its processes, in words for people. */
  readonly confinement: string;
  open(): Promise<OpenedTransport>;
}

/** Transports that are not started yet. */
export interface OpenedTransport extends McpTransports {
  /** Returns the end of what the server printed for people. */
  lastWords(): string;
  /** Returns why this side ended it; undefined if it did not. */
  endReason?(): string | undefined;
  /** Returns the resident memory of its processes; 0 if that is not known. */
  memory(): Promise<number>;
}

/** The connection to a server, which is made again when it ends. */
export type Upstream = ReturnType<typeof startUpstream>;

/** The state of a connection, always the same object until it changes. */
export interface UpstreamState {
  readonly state: SourceState;
  readonly since: number;
  readonly problem: string;
  readonly restarts: number;
  /** Tools of the server; of the last connection while there is none. */
  readonly offered: readonly McpDefinition[];
}

/** Starts to connect to a server. `changed` is called after each change of the state. */
export function startUpstream(
  settings: UpstreamSettings,
  opener: UpstreamOpener,
  { now, changed, warn }: { now(): number; changed(): void; warn(reason: string): void },
) {
  let current: UpstreamState = { state: SourceState.CONNECTING, since: now(), problem: "", restarts: 0, offered: [] };
  let opened: OpenedTransport | undefined;
  let connection: McpConnection | undefined;
  let timer: NodeJS.Timeout | undefined;
  /** Ends in a row, each soon after it began; the wait depends on them. */
  let failures = 0;
  /** Attempts in a row that did not connect. */
  let failedAttempts = 0;
  let isClosed = false;
  const attempted = Promise.withResolvers<void>();
  const patience = setTimeout(attempted.resolve, firstAnswerMs).unref();

  function change(next: Partial<UpstreamState>): void {
    const since = next.state === undefined || next.state === current.state ? current.since : now();
    current = { ...current, since, ...next };
    if (current.state !== SourceState.CONNECTING) settle();
    changed();
  }

  function settle(): void {
    clearTimeout(patience);
    attempted.resolve();
  }

  async function connect(): Promise<void> {
    let mine: OpenedTransport | undefined;
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    try {
      // The client takes 100 ms to load, and most services have no server.
      const { connectMcp } = await import("./mcp-connection.ts");
      mine = await opener.open();
      opened = mine;
      let made: McpConnection | undefined;
      // A change that is announced before is in the first list.
      const relistMade = () => made && void relist(made);
      made = await connectMcp(mine, { changed: relistMade, closed: end, refused: warn });
      if (isClosed) return await made.close();
      const offered = read(await made.list());
      connection = made;
      failedAttempts = 0;
      change({ state: SourceState.READY, problem: "", offered });
      const began = now();
      await ended;
      connection = undefined;
      if (now() - began >= steadyMs) failures = 0;
      if (!isClosed) retry("the connection ended", mine);
    } catch (error) {
      await closeAll(mine);
      failedAttempts += 1;
      if (!isClosed) retry(errorWords(error), mine);
    }
  }

  function retry(reason: string, from: OpenedTransport | undefined): void {
    failures += 1;
    const words = from?.lastWords().trim();
    const why = from?.endReason?.() ?? (words ? `${reason}; it printed last: ${words}` : reason);
    if (failedAttempts >= maxFailedAttempts) {
      change({
        state: SourceState.FAILED,
        problem: `${why}. No further attempt follows: correct it and reload the configuration`,
      });
      warn(current.problem);
      return;
    }
    const waitMs = Math.min(maxWaitMs, firstWaitMs * 2 ** (failures - 1));
    change({ state: SourceState.WAITING, problem: `${why}. The next attempt follows in ${waitMs / 1_000} s` });
    warn(current.problem);
    timer = setTimeout(() => {
      change({ state: SourceState.CONNECTING, restarts: current.restarts + 1 });
      void connect();
    }, waitMs).unref();
  }

  async function relist(from: McpConnection): Promise<void> {
    try {
      const offered = read(await from.list());
      if (connection === from) change({ offered, problem: "" });
    } catch (error) {
      // What is offered now is not known, so nothing is.
      if (connection === from)
        change({ offered: [], problem: `its tools could not be listed again: ${errorWords(error)}` });
    }
  }

  const read = (offered: Awaited<ReturnType<McpConnection["list"]>>) =>
    offered
      .filter(({ name }) => settings.offers(name))
      .map((tool) => readDefinition(settings.name, tool))
      .sort((a, b) => (a.name < b.name ? -1 : 1));

  void connect();
  return {
    settings,
    confinement: opener.confinement,
    state: (): UpstreamState => current,
    memory: async (): Promise<number> => (connection ? ((await opened?.memory()) ?? 0) : 0),
    /** Resolves when the first attempt to connect has ended, at most a while after it began. */
    ready: (): Promise<void> => attempted.promise,
    /** Returns the connection; throws `ToolFailure` if there is none. */
    connection(): McpConnection {
      if (connection !== undefined) return connection;
      const why = current.problem || "it has not answered yet";
      throw new ToolFailure(`The MCP server ${settings.name} is not connected, so nothing was run: ${why}.`, {
        hadNoEffects: true,
      });
    },
    /** Ends a connection on which a call was silent, if the server does not list its tools either. It is made again. */
    async verify(silent: McpConnection): Promise<void> {
      await silent.list().catch(async () => {
        if (connection === silent) await silent.close();
      });
    },
    /** Reports whether a connection is the present one. */
    isConnected: (other: McpConnection): boolean => other === connection,
    async close(): Promise<void> {
      isClosed = true;
      clearTimeout(timer);
      settle();
      await connection?.close();
      await closeAll(opened);
    },
  };
}

async function closeAll({ transport, olderTransport }: Partial<McpTransports> = {}): Promise<void> {
  await Promise.allSettled([transport?.close(), olderTransport?.close()]);
}

/** Describes a failure in a line. A server may send anything as its reason. */
export function errorWords(error: unknown): string {
  const words = visible(error instanceof Error ? error.message : String(error));
  return words.length <= maxWords ? words : `${words.slice(0, maxWords)}…`;
}

const maxWords = 500;

/** Time for which a list of tools waits for a server that starts. */
const firstAnswerMs = 2_000;
const firstWaitMs = 1_000;
const maxWaitMs = 60_000;
const maxFailedAttempts = 5;
/** A connection that lasted this long counts as working: the next wait is the first one again. */
const steadyMs = 60_000;
