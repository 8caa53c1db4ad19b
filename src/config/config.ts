import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import type { CodeSettings } from "../core/language-server.ts";
import type { LogRotation } from "../core/log-file.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import { type AgentRunnerSettings, readAgentRunners } from "./agent-runners.ts";
import { ConfigError } from "./errors.ts";
import { readSettings, type Settings } from "./file.ts";
import { readLanguageServers } from "./language-servers.ts";
import { type ConfigLimits, readLimits } from "./limits.ts";
import { checkListen, type ListenAddress, parseAddress } from "./listen-address.ts";
import { type McpHoldTime, readMcpHolds } from "./mcp-holds.ts";
import { type Flags, fromEnvironment, fromFlags } from "./overrides.ts";
import { canonicalPath, checkDataDirectory, checkOutside, createPrivateDirectory, openRoots } from "./paths.ts";
import { readPolicy, type WrittenPolicy } from "./policy.ts";
import { readRotation } from "./rotation.ts";
import { readSandbox, type SandboxSettings } from "./sandbox.ts";
import { readSearch } from "./search.ts";
import { readTls, type Tls } from "./tls.ts";
import { readTokens, type Token } from "./tokens.ts";
import { readToolProcesses, type ToolProcessSettings } from "./tool-processes.ts";
import { readTracing } from "./tracing.ts";
import { readUpstreamServers, type UpstreamServerSettings } from "./upstream-servers.ts";

export type { AgentRunnerSettings } from "./agent-runners.ts";
export { checkPolicy, type Finding } from "./check-policy.ts";
export { ConfigError } from "./errors.ts";
export { createGitFiles } from "./git-files.ts";
export type { ConfigLimits, NetworkLimits, ReplicaLimits } from "./limits.ts";
export type { ListenAddress } from "./listen-address.ts";
export type { Flags } from "./overrides.ts";
export { configuredRules, ruleLine } from "./policy.ts";
export type { Confinement, SandboxSettings } from "./sandbox.ts";
export { searchWarnings } from "./search.ts";
export type { Tls } from "./tls.ts";
export { type Token, tokenWarnings } from "./tokens.ts";
export type { ToolProcessSettings } from "./tool-processes.ts";
export type { UpstreamProgram, UpstreamServerSettings } from "./upstream-servers.ts";
export { createWorkspaceRules, workspaceRuleLine } from "./workspace-rules.ts";

/** The complete configuration of a service. No other part reads flags, environment or the file. */
export interface Config extends SearchSettings, CodeSettings {
  /** The canonical path of the configuration file, which may not exist: the engine denies it to every tool. */
  readonly file: string;
  /** Contains the store, outputs, tokens and logs (canonical, 0700). */
  readonly dataDirectory: string;
  /** The data directory of this user's service, if it is another one (canonical): no tool may touch it either. */
  readonly serviceDirectory?: string;
  /** Contains the list of workspaces whose code is trusted. */
  readonly trustDirectory: string;
  /** `sqlite`, or the URL of a Redis that replicas share; it may contain a password. */
  readonly store: string;
  /** Free bytes of the data directory below which new work is refused. Undefined: 64 MiB, or 5 % of a smaller disk. */
  readonly storeMinFree?: number;
  /** Acknowledge only what enough copies of Redis have. By default: where there are copies. */
  readonly storeStrict?: boolean;
  /** Copies of each master of Redis. By default they are counted. */
  readonly storeCopies?: number;
  /** True to begin without records beside the traces of a store that was lost. */
  readonly newStore?: boolean;
  readonly listen: Readonly<ListenAddress>;
  /** A further address for health alone, without encryption. */
  readonly healthListen?: Readonly<ListenAddress>;
  /** Undefined: no encryption. */
  readonly tls: Tls | undefined;
  /** Additional names that the service accepts in the Host header. */
  readonly hosts: readonly string[];
  /** The web origins whose scripts may send requests, exactly as browsers send them. */
  readonly origins: readonly string[];
  /** Addresses and networks of proxies, whose connections have clients of many addresses. */
  readonly trustedProxies: readonly string[];
  /** Root name → canonical directory. */
  readonly workspaces: ReadonlyMap<string, string>;
  /** Rules, and the agents that calls may be made as. */
  readonly policy: WrittenPolicy;
  /** Empty only with `insecureNoAuth`. */
  readonly tokens: readonly Token[];
  /** The file of the caller token that the service created, if no token is configured. */
  readonly callerTokenFile?: string;
  /** The file in which `toolgate login` of this user stores credentials; no tool may read it. */
  readonly loginFile?: string;
  readonly insecureNoAuth: boolean;
  /** True if an answer from this machine needs another user of the operating system than its call. */
  readonly requiresOtherUser: boolean;
  /** The handling of asks: they wait for an approver, or are denied at once. */
  readonly unattended: "wait" | "deny";
  /** The match that an answer "always" saves if it names no offer: the narrowest one, or the tool's own patterns. */
  readonly plainAlways: "narrowest" | "tool";
  readonly askMs: number;
  readonly leaseMs: number;
  readonly drainMs: number;
  /** Times for which calls of MCP clients are held; the first entry, without a name, is for all other clients. */
  readonly mcpHolds: readonly McpHoldTime[];
  /** True if the door for clients of opencode is open. */
  readonly servesOpencode: boolean;
  readonly logLevel: "debug" | "info" | "warn" | "error";
  readonly logRotation: LogRotation;
  /** True if OpenTelemetry spans are exported. */
  readonly tracing: boolean;
  /** Files of plugins, outside of every workspace. */
  readonly plugins: readonly { readonly path: string; readonly optional: boolean }[];
  /** Root name → handling of the plugins that a trusted workspace brings; `require` if it is not named. */
  readonly workspacePlugins: Readonly<Record<string, "require" | "optional" | "off">>;
  /** Directories of the user's skills, the first one taking precedence. */
  readonly skillDirectories: readonly string[];
  /** Programs that run agents for `task`. */
  readonly agentRunners: readonly AgentRunnerSettings[];
  /** Settings of the processes that run tool files and plugins. */
  readonly toolProcesses: ToolProcessSettings;
  /** MCP servers whose tools are offered. */
  readonly upstreamServers: readonly UpstreamServerSettings[];
  /** The experimental tools that are offered, by name. */
  readonly experimental: readonly string[];
  readonly limits: Readonly<ConfigLimits>;
  readonly sandbox: SandboxSettings;
}

/** The environment of a process. */
export interface Environment {
  env: Readonly<Record<string, string | undefined>>;
  home: string;
  /** The current directory. */
  directory: string;
}

/** Reads the environment of the process. Nothing else in this folder does, so the caller of `loadConfig` controls its input. */
export function readEnvironment(): Environment {
  return { env: process.env, home: homedir(), directory: process.cwd() };
}

/** Merges flags, `TOOLGATE_*`, the file and the defaults; throws `ConfigError` for settings that are invalid or unsafe. */
export function loadConfig(flags: Flags, environment: Environment): Config {
  return readConfig(flags, environment, false);
}

/**
 * Reads a configuration as `loadConfig` does and refuses the same, but creates nothing. Without a configured workspace there is
 * none: the current directory is that of the check, not of the service.
 */
export function loadConfigForCheck(flags: Flags, environment: Environment): Config {
  return readConfig(flags, environment, true);
}

function readConfig(flags: Flags, environment: Environment, isCheck: boolean): Config {
  const { env, home, directory } = environment;
  const { file, written, lineOf, settings } = mergeSettings(flags, environment);
  const listen = parseAddress(settings.listen ?? "127.0.0.1:7420");
  checkListen(listen.host, settings);
  const named = flags.workspace ?? env.TOOLGATE_WORKSPACE;
  const hasRoots = named !== undefined || settings.workspace !== undefined;
  const workspaces = openRoots(isCheck && !hasRoots ? {} : roots(settings, named, directory));
  const data = settings.data ?? defaultData(environment);
  checkDataDirectory(data, workspaces);
  if (written !== undefined) checkOutside(file, "the configuration file", workspaces);
  const plugins = (settings.plugin ?? []).map(readPlugin);
  for (const { path } of plugins) checkOutside(path, "the plugin", workspaces);
  checkWorkspaceNames(settings.workspace_plugins ?? {}, workspaces);
  const dataDirectory = isCheck ? canonicalPath(data) : createPrivateDirectory(data);
  const insecureNoAuth = settings.insecure_no_auth ?? false;
  const store = settings.store ?? "sqlite";
  const makeOwn = store === "sqlite";
  const { tokens, generated } = readTokens({
    ...{ settings, env, workspaces, dataDirectory, insecureNoAuth, makeOwn, isCheck },
  });

  return deepFreeze({
    file: canonicalPath(file),
    dataDirectory,
    trustDirectory: trustIn(dataDirectory),
    store,
    ...(settings.store_strict !== undefined && { storeStrict: settings.store_strict }),
    ...(settings.store_copies !== undefined && { storeCopies: settings.store_copies }),
    ...(settings.store_min_free !== undefined && { storeMinFree: settings.store_min_free }),
    ...(flags.newStore && { newStore: true }),
    listen,
    ...(settings.health_listen !== undefined && { healthListen: parseAddress(settings.health_listen) }),
    tls: readTls(settings, workspaces),
    hosts: settings.hosts ?? [],
    origins: settings.origins ?? [],
    trustedProxies: settings.trusted_proxies ?? [],
    workspaces,
    policy: readPolicy(settings, lineOf, home),
    tokens,
    ...(generated !== undefined && { callerTokenFile: generated }),
    loginFile: loginFileOf(environment),
    insecureNoAuth,
    requiresOtherUser: settings.require_other_user ?? false,
    unattended: settings.unattended ?? "wait",
    plainAlways: settings.plain_always ?? "narrowest",
    askMs: settings.ask_ms ?? 900_000,
    leaseMs: settings.lease_ms ?? 15_000,
    drainMs: settings.drain_ms ?? 30_000,
    mcpHolds: readMcpHolds(settings),
    servesOpencode: flags.opencode ?? settings.rest?.enabled ?? false,
    logLevel: settings.log_level ?? "info",
    logRotation: readRotation(settings.log),
    tracing: readTracing(env),
    plugins,
    workspacePlugins: settings.workspace_plugins ?? {},
    skillDirectories: userSkillDirectories(canonicalPath(file), home),
    agentRunners: readAgentRunners(settings, env, workspaces),
    toolProcesses: readToolProcesses(settings.tools ?? {}, env, workspaces),
    upstreamServers: readUpstreamServers(settings.mcp ?? {}, env, workspaces),
    ...readLanguageServers(settings.lsp, env, workspaces),
    experimental: settings.experimental ?? [],
    ...readSearch(settings, { env, workspaces }),
    limits: readLimits(settings.limits),
    sandbox: readSandbox(settings, written === undefined ? [] : [file]),
  });
}

/** Returns the directories in which a service with these flags stores its data and its trusted workspaces. Creates nothing. */
export function findService(
  flags: Flags,
  environment: Environment,
): Required<Pick<Config, "serviceDirectory" | "trustDirectory">> {
  const serviceDirectory = canonicalPath(mergeSettings(flags, environment).settings.data ?? defaultData(environment));
  return { serviceDirectory, trustDirectory: trustIn(serviceDirectory) };
}

/** Returns the store of a service with these flags. Its data directory must exist. */
export function findStore(flags: Flags, environment: Environment): Pick<Config, "store" | "dataDirectory"> {
  const { settings } = mergeSettings(flags, environment);
  const dataDirectory = settings.data ?? defaultData(environment);
  const { store = "sqlite" } = settings;
  if (store !== "sqlite" || existsSync(dataDirectory)) return { store, dataDirectory };
  throw new ConfigError(`there is no data directory ${dataDirectory}; name the one of the service with --data DIR`);
}

const trustIn = (data: string) => join(data, "trust");

function mergeSettings(flags: Flags, environment: Environment) {
  const { env, home, directory } = environment;
  const explicitFile = flags.config ?? env.TOOLGATE_CONFIG;
  const file = configFile(explicitFile, environment);
  const { settings: written, lineOf = () => undefined } = readSettings(file, home) ?? {};
  if (written === undefined && explicitFile !== undefined) {
    throw new ConfigError(`the configuration file ${file} does not exist; create it, or leave out --config`);
  }
  const settings: Settings = { ...written, ...fromEnvironment(env, directory), ...fromFlags(flags, directory) };
  return { file, written, lineOf, settings };
}

/** Returns the path of the configuration file: the explicit one, or the default of this user. */
export function configFile(explicit: string | undefined, environment: Environment): string {
  return resolve(environment.directory, explicit ?? join(userDirectory(environment), "toolgate.toml"));
}

function loginFileOf(environment: Environment): string {
  return canonicalPath(resolve(environment.directory, userDirectory(environment), "credentials.json"));
}

/** Returns the directory of this user's configuration. */
function userDirectory({ env, home }: Environment): string {
  return join(env.XDG_CONFIG_HOME || join(home, ".config"), "toolgate");
}

/** Returns the default data directory of this user. */
export function defaultData({ env, home }: Environment): string {
  return join(env.XDG_DATA_HOME || join(home, ".local", "share"), "toolgate");
}

/** Returns the configured roots, with the named directory as `default`, or the current one if no root is configured. */
function roots(settings: Settings, named: string | undefined, directory: string): Readonly<Record<string, string>> {
  if (named !== undefined) return { ...settings.workspace, default: resolve(directory, named) };
  return settings.workspace ?? { default: directory };
}

/** Returns the directories of the user's skills: beside the configuration file, and those of opencode in the home directory. */
export function userSkillDirectories(file: string, home: string): string[] {
  return [dirname(file), join(home, ".opencode")].flatMap((path) =>
    ["skill", "skills"].map((name) => join(path, name)),
  );
}

function readPlugin(plugin: NonNullable<Settings["plugin"]>[number]): Config["plugins"][number] {
  return typeof plugin === "string"
    ? { path: plugin, optional: false }
    : { path: plugin.path, optional: plugin.optional ?? false };
}

function checkWorkspaceNames(table: Readonly<Record<string, unknown>>, roots: ReadonlyMap<string, string>): void {
  const unknown = Object.keys(table).find((name) => !roots.has(name));
  if (unknown === undefined) return;
  throw new ConfigError(
    `workspace_plugins names the workspace "${unknown}", which is not configured; configured are: ${[...roots.keys()].join(", ")}`,
  );
}

function deepFreeze<T>(value: T): T {
  if (typeof value !== "object" || value === null) return value;
  const parts = value instanceof Map ? value.values() : Object.values(value);
  for (const part of parts) deepFreeze(part);
  return Object.freeze(value);
}
