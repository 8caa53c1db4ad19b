import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Config, UpstreamProgram, UpstreamServerSettings } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { matcher } from "../policy/wildcard.ts";
import type { PlaceNetwork } from "../sandbox/network/session-networks.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { OpenedTransport, UpstreamOpener } from "../sources/mcp/upstream.ts";
import { createUpstreamSources, type UpstreamServer, type UpstreamSources } from "../sources/mcp/upstream-sources.ts";
import type { ServiceStore } from "../store/record-tables.ts";
import type { Registry } from "../tool/registry.ts";
import type { Judge } from "../tool/tool.ts";
import { compare } from "../tools/fs/diff.ts";
import type { Supervisor } from "../tools/process/supervisor.ts";
import { type LastingProgram, residentBytes, startLastingProgram } from "./lasting-program.ts";
import type { ToolProblems } from "./skills.ts";

/** The parts of a replica that run MCP servers. */
interface UpstreamParts {
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Returns the function that evaluates the configured rules for an agent. */
  judgeFor(agent: string): Judge;
  log: Logger;
}

/** Connects to the configured MCP servers and offers what was accepted of their tools. */
export function openUpstreams(
  { upstreamServers }: Pick<Config, "upstreamServers">,
  {
    registry,
    store,
    ...parts
  }: UpstreamParts & { registry: Registry; store: Pick<ServiceStore, "calls" | "acceptedSources"> },
): { sources: UpstreamSources; replace(servers: readonly UpstreamServerSettings[]): Promise<void> } {
  const { log } = parts;
  const sources = createUpstreamSources({
    registry,
    accepted: store.acceptedSources,
    writeDiff: (name, before, after) => compare(name, before === undefined ? before : { text: before }, after).diff,
    now: store.calls.now,
    warn: (message, { name, reason }) => log.warn(message, { args: { mcp: name }, reason }),
  });
  registry.addProvider(sources);
  const replace = (servers: readonly UpstreamServerSettings[]) =>
    sources.replace(servers.map((server) => withOpener(server, parts)));
  void replace(upstreamServers);
  return { sources, replace };
}

/** Adds the problems of MCP servers to those of files; `file` is the configuration, which names the servers. */
export function withUpstreamProblems(
  custom: ToolProblems,
  sources: Pick<UpstreamSources, "problems">,
  file: string,
): ToolProblems {
  return {
    refresh: custom.refresh,
    problems: (workspace) => [
      ...custom.problems(workspace),
      ...sources.problems().map(({ name, reason }) => ({ path: file, line: 0, reason: `[mcp.${name}]: ${reason}` })),
    ],
  };
}

function withOpener(server: UpstreamServerSettings, parts: UpstreamParts): UpstreamServer {
  const { program, remote } = server;
  return { ...server, opener: program ? programOpener(server.name, program, parts) : remoteOpener(remote) };
}

function remoteOpener(
  { url, headers }: NonNullable<UpstreamServerSettings["remote"]> = { url: "", headers: {} },
): UpstreamOpener {
  return {
    confinement: "runs elsewhere",
    async open() {
      const { SSEClientTransport, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
      const { createKeptFetch } = await import("../sources/mcp/kept-fetch.ts");
      // A header may hold a name before its secret, such as Bearer.
      const secrets = Object.values(headers).flatMap((value) => [value, ...value.split(" ").slice(1)]);
      const options = { requestInit: { headers }, fetch: createKeptFetch(secrets.filter((part) => part.length >= 8)) };
      return {
        transport: new StreamableHTTPClientTransport(new URL(url), options),
        olderTransport: new SSEClientTransport(new URL(url), options),
        ...{ lastWords: () => "", memory: async () => 0 },
      };
    },
  };
}

function programOpener(
  name: string,
  program: UpstreamProgram,
  { sandbox, supervisor, judgeFor, log }: UpstreamParts,
): UpstreamOpener {
  const network = hostNetwork(
    { name: `mcp ${name}`, title: `the MCP server ${name}`, table: `[mcp.${name}]`, hosts: program.hosts },
    { log, args: { mcp: name } },
  );

  async function start(): Promise<LastingProgram> {
    const [first, ...others] = program.folders;
    const directories = others.map((path) => ({ path, isWritable: true }));
    // A program without folders gets an empty one.
    const own = first === undefined ? await realpath(await mkdtemp(join(tmpdir(), "toolgate-mcp-"))) : undefined;
    const cwd = first ?? own ?? "/";
    const files = {
      rules: async () => judgeFor("").fileRules(),
      onStale(reason: string) {
        log.warn("an MCP server is started again, since rules or files changed", { args: { mcp: name }, reason });
        void started.kill();
      },
      onProblem: (error: unknown) =>
        log.warn("files of an MCP server cannot be checked or removed", { args: { mcp: name }, error }),
    };
    const removeOwn = async () => own !== undefined && (await rm(own, { recursive: true, force: true }));
    const started = await startLastingProgram(
      { sandbox, supervisor },
      { call: { sessionId: "mcp", callId: name }, argv: [program.command, ...program.args], env: program.env, files },
      { agent: "", cwd, workspace: cwd, directories, network },
    ).catch(async (error: unknown) => {
      await removeOwn();
      throw error;
    });
    // A program may leave what the service cannot remove.
    started.exited.then(removeOwn).catch(files.onProblem);
    return started;
  }

  return {
    confinement:
      sandbox.state.profile === "off" ? "without a sandbox" : `in the sandbox, with ${hostWords(program.hosts)}`,
    async open(): Promise<OpenedTransport> {
      const { ProgramTransport } = await import("../sources/mcp/program-transport.ts");
      let pid = 0;
      const transport = new ProgramTransport(async () => {
        const started = await start();
        pid = started.pid;
        return started;
      });
      return {
        ...{ transport, lastWords: () => transport.lastWords(), endReason: () => transport.endReason() },
        memory: () => residentBytes(pid),
      };
    },
  };
}

/** A program that outlives single calls, and the wildcards of the hosts that the configuration names for it. */
interface NetworkedProgram {
  name: string;
  /** Names it in messages. */
  title: string;
  /** The table of the configuration that has `hosts`. */
  table: string;
  hosts: readonly string[];
  /** Ports of this machine's loopback that it reaches. */
  localPorts?: readonly number[];
}

/** Creates the network of such a program: it reaches the configured hosts, and no person is asked. */
export function hostNetwork(
  { name, title, table, hosts, localPorts = [] }: NetworkedProgram,
  { log, args }: { log: Logger; args: object },
): PlaceNetwork {
  const matches = hosts.map(matcher);
  return {
    name,
    forwards: localPorts.map((port) => ({ host: "127.0.0.1", port })),
    judge(url) {
      const { hostname, host } = new URL(url);
      const isAllowed = matches.some((match) => match(hostname) || match(host));
      return isAllowed
        ? { action: "allow", reason: `${table} in the configuration names this host` }
        : { action: "deny", reason: `${title} may not reach ${host}: add it to hosts in ${table}` };
    },
    refused: (_, reason) => log.warn(`the network refused a request of ${title}`, { args, reason }),
    used: () => {},
    unavailable: (reason) => log.warn(`${title} has no network`, { args, reason }),
  };
}

/** Describes the network of a program for people. */
export function hostWords(hosts: readonly string[], localPorts: readonly number[] = []): string {
  const places = [...hosts, ...localPorts.map((port) => `127.0.0.1:${port}`)];
  return places.length === 0 ? "no network" : `the network for ${places.join(", ")}`;
}
