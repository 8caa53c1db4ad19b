import { existsSync } from "node:fs";
import { isAbsolute, normalize } from "node:path";
import { locateProgram } from "../core/locate-program.ts";
import { builtInAgents } from "../policy/agents.ts";
import { matcher } from "../policy/wildcard.ts";
import { canonicalPath, checkOutside } from "./paths.ts";
import type { SandboxSettings } from "./sandbox.ts";
import type { Settings } from "./schema.ts";
import { ConfigError } from "./toml.ts";

/** The environment of the service, and the workspaces, in which no program may lie. */
export interface ProgramSources {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly workspaces: ReadonlyMap<string, string>;
}

/** A problem of a table that prevents no start. */
export interface TableWarning {
  readonly name: string;
  readonly message: string;
}

/** A program that runs agents over the Agent Client Protocol. */
export interface AgentRunnerSettings extends Pick<UpstreamProgram, "command" | "args" | "env"> {
  readonly name: string;
  /** Variables that are named and not set. */
  readonly unset: readonly string[];
  /** The agents that it runs. */
  readonly agents: readonly string[];
  /** Directory in which it works, below the directory of its session. */
  readonly cwd: string;
}

/** An MCP server whose tools are offered. */
export interface UpstreamServerSettings {
  readonly name: string;
  /** Equal for equal settings. */
  readonly key: string;
  /** The program with its arguments, or the address without what may be secret, for people. */
  readonly origin: string;
  readonly program?: UpstreamProgram;
  readonly remote?: { readonly url: string; readonly headers: Readonly<Record<string, string>> };
  offers(original: string): boolean;
  readonly patterns: ReadonlyMap<string, string>;
  readonly isTrusted: boolean;
  readonly timeoutMs: number;
  /** Variables that are named and not set. */
  readonly unset: readonly string[];
}

/** The program of a server. */
export interface UpstreamProgram {
  /** Path of the program, or its name in `env.PATH`. */
  readonly command: string;
  readonly args: readonly string[];
  /** The whole environment of the program: PATH, HOME and the named variables. */
  readonly env: Readonly<Record<string, string>>;
  /** Canonical directories that it may read and change; the first one is its working directory. */
  readonly folders: readonly string[];
  /** Wildcards of the hosts that it reaches. */
  readonly hosts: readonly string[];
}

/** Settings of the processes that run tool files and plugins. */
export interface ToolProcessSettings {
  /** Wildcards of the hosts that they reach. */
  readonly hosts: readonly string[];
  /** Ports of this machine's loopback that they reach. */
  readonly localPorts: readonly number[];
  /** Variables of the service's environment that they get, in addition to those of commands. */
  readonly env: Readonly<Record<string, string>>;
  /** Named variables that the service's environment lacks. */
  readonly unset: readonly string[];
  /** Path of Bun; undefined: the one that is found, if any. */
  readonly bun: string | undefined;
}

/** Variables that every program needs and that hold no secret. */
const alwaysPassed = ["PATH", "HOME"];

/** Reads the runners. Refuses agents that are not configured, and programs and directories that a tool could choose. */
export function readAgentRunners(settings: Settings, sources: ProgramSources): AgentRunnerSettings[] {
  const known = new Set([...builtInAgents.keys(), ...Object.keys(settings.agent)]);
  return Object.entries(settings.agent_runner).map(([name, { command, args, env, agents, cwd }]) => {
    const what = `agent_runner "${name}"`;
    const unknown = agents.find((agent) => !known.has(agent));
    if (unknown !== undefined)
      throw new ConfigError(
        `${what}: the agent "${unknown}" is not configured; add [agent.${unknown}], or name one of: ${[...known].join(", ")}`,
      );
    if (isAbsolute(cwd) || normalize(cwd).startsWith(".."))
      throw new ConfigError(
        `${what}: cwd ${JSON.stringify(cwd)} leads out of the workspace; name a directory below that of the session`,
      );
    checkProgram(command, what, sources);
    return {
      ...{ name, command, args, agents, cwd },
      env: setVariables([...alwaysPassed, ...env], sources.env),
      unset: unsetVariables(env, sources.env),
    };
  });
}

/** Finds what keeps runners from working: programs and variables that are missing, and a sandbox without network. */
export function agentRunnerWarnings(
  agentRunners: readonly AgentRunnerSettings[],
  sandbox: SandboxSettings,
): TableWarning[] {
  return agentRunners.flatMap(({ name, command, env, unset, agents }) => {
    const walled = agents.filter((agent) => (sandbox.agents.get(agent) ?? sandbox).network === "none");
    return warningsOf("agent_runner", name, [
      ...missingProgram(command, env.PATH, ", so its tasks fail"),
      ...unset.map(
        (key) => `the variable ${key} is not set, so the program starts without it; set it, or take it out of env`,
      ),
      ...walled.map(
        (agent) =>
          `the sandbox gives agent ${agent} no network, so the program reaches neither its model nor Toolgate; set network = "proxy" under [sandbox.agent.${agent}]`,
      ),
    ]);
  });
}

/** Reads the MCP servers. Refuses programs that a tool could replace. */
export function readUpstreamServers(tables: Settings["mcp"], sources: ProgramSources): UpstreamServerSettings[] {
  const { env } = sources;
  return Object.entries(tables).map(([name, table]) => {
    const { command = "", url, tools, patterns, args = [], folders = [], hosts = [], header_env = {} } = table;
    const named = [...(table.env ?? []), ...Object.values(header_env)];
    const matches = tools?.map(matcher);
    const settings = {
      ...{ name, patterns: new Map(Object.entries(patterns)), isTrusted: table.trusted, timeoutMs: table.timeout_ms },
      key: JSON.stringify([table, named.map((variable) => env[variable] ?? "")]),
      unset: unsetVariables(named, env),
      offers: (original: string) => matches?.some((match) => match(original)) ?? true,
    };
    if (url !== undefined) {
      const { origin, pathname } = new URL(url);
      const secret = Object.entries(header_env).map(([header, variable]) => [header, env[variable] ?? ""]);
      const headers = { ...table.headers, ...Object.fromEntries(secret) };
      return { ...settings, origin: `${origin}${pathname}`, remote: { url, headers } };
    }
    checkProgram(command, `mcp "${name}"`, sources);
    const program = {
      ...{ command, args, hosts, folders: folders.map(canonicalPath) },
      env: setVariables([...alwaysPassed, ...(table.env ?? [])], env),
    };
    return { ...settings, origin: [command, ...args].join(" "), program };
  });
}

/** Finds what keeps servers from working: programs, folders and variables that are missing. */
export function upstreamWarnings(servers: readonly UpstreamServerSettings[]): TableWarning[] {
  return servers.flatMap(({ name, program, unset }) =>
    warningsOf("mcp", name, [
      ...(program ? missingProgram(program.command, program.env.PATH) : []),
      ...(program?.folders ?? [])
        .filter((folder) => !existsSync(folder))
        .map((folder) => `the folder ${folder} does not exist; create it, or take it out of folders`),
      ...unset.map((key) => `the variable ${key} is not set; set it, or take it out of the table`),
    ]),
  );
}

/** Reads the settings of tool processes. Refuses a Bun that a tool could replace, or that is not there. */
export function readToolProcesses(
  { hosts, local_ports: localPorts, env: names, bun }: Settings["tools"],
  { env, workspaces }: ProgramSources,
): ToolProcessSettings {
  if (bun !== undefined) {
    if (locateProgram(bun, undefined) === undefined)
      throw new ConfigError(`bun under [tools] names ${bun}, which is no program; install Bun there, or leave it out`);
    checkOutside(bun, "bun under [tools]", workspaces);
  }
  return { hosts, localPorts, unset: unsetVariables(names, env), env: setVariables(names, env), bun };
}

/** Finds variables of tool processes that are missing. */
export function toolProcessWarnings({ unset }: ToolProcessSettings): string[] {
  return unset.map((key) => `env under [tools] names the variable ${key}, which is not set; set it, or take it out`);
}

/** Refuses a program in a workspace. */
export function checkProgram(command: string, what: string, { env, workspaces }: ProgramSources): void {
  const file = locateProgram(command, env.PATH);
  if (file !== undefined) checkOutside(file, `the program of ${what}`, workspaces);
}

/** Returns the warning about a program that is missing, if it is. */
export function missingProgram(command: string, path: string | undefined, effect = ""): string[] {
  if (locateProgram(command, path) !== undefined) return [];
  return [`the program ${command} is not found${effect}; install it, or name its path in command`];
}

/** Returns the named variables that are set, with their values. */
export function setVariables(names: readonly string[], env: ProgramSources["env"]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]])));
}

/** Returns the named variables that are not set. */
export function unsetVariables(names: readonly string[], env: ProgramSources["env"]): string[] {
  return names.filter((name) => env[name] === undefined);
}

/** Words the problems of a table. */
export function warningsOf(table: string, name: string, problems: readonly string[]): TableWarning[] {
  return problems.map((problem) => ({ name, message: `${table} "${name}": ${problem}` }));
}
