import { homedir } from "node:os";
import { join, resolve } from "node:path";
import type { AskingTool } from "../policy/known-permissions.ts";
import { checkPolicy, type Finding } from "./check-policy.ts";
import { ConfigError } from "./errors.ts";
import { readSettings, type Settings } from "./file.ts";
import { type Flags, fromEnvironment, fromFlags } from "./overrides.ts";
import { canonicalPath, checkDataDirectory, checkOutside, createPrivateDirectory, openRoots } from "./paths.ts";
import { readPolicy, type WrittenPolicy } from "./policy.ts";
import { readTls, type Tls } from "./tls.ts";
import { readTokens, type Token } from "./tokens.ts";
import { readTracing } from "./tracing.ts";
import { isWorkspaceFile, readWorkspaceSettings } from "./workspace-rules.ts";

export { checkPolicy, type Finding, rulesOf } from "./check-policy.ts";
export { ConfigError } from "./errors.ts";
export type { Flags } from "./overrides.ts";
export type { Tls } from "./tls.ts";
export type { Token } from "./tokens.ts";
export { createWorkspaceRules } from "./workspace-rules.ts";

/** Everything that is decided before the start; no part reads flags, environment or the file again. */
export interface Config {
  /** Where the configuration file is or would be (canonical): the engine denies it to every tool. */
  readonly file: string;
  /** Holds the store, outputs, tokens and logs (canonical, 0700). */
  readonly dataDirectory: string;
  /** The data directory of this user's service, where that is another one (canonical): no tool may touch it either. */
  readonly serviceDirectory?: string;
  /** Holds which workspaces' code is trusted. */
  readonly trustDirectory: string;
  /** `sqlite`, or the URL of a Redis that replicas share; it may hold a password. */
  readonly store: string;
  readonly listen: Readonly<ListenAddress>;
  /** Undefined: in clear. */
  readonly tls: Tls | undefined;
  /** Further names in the Host header that this server answers for. */
  readonly hosts: readonly string[];
  /** The web origins whose scripts may call, exactly as a browser sends them. */
  readonly origins: readonly string[];
  /** Root name → canonical directory. */
  readonly workspaces: ReadonlyMap<string, string>;
  /** Rules, and the agents that calls may be made as. */
  readonly policy: WrittenPolicy;
  /** Empty only with `insecureNoAuth`. */
  readonly tokens: readonly Token[];
  readonly insecureNoAuth: boolean;
  /** What becomes of an ask: it waits for a person, or is denied at once. */
  readonly unattended: "wait" | "deny";
  readonly askMs: number;
  readonly leaseMs: number;
  readonly drainMs: number;
  readonly logLevel: "debug" | "info" | "warn" | "error";
  /** Whether OpenTelemetry spans are sent. */
  readonly tracing: boolean;
  /** Files of plugins, outside every workspace. */
  readonly plugins: readonly string[];
  /** The experimental tools that are offered, by name. */
  readonly experimental: readonly string[];
  readonly limits: Readonly<ConfigLimits>;
  readonly sandbox: SandboxSettings;
}

/** Where to listen. Port 0 takes a free one. */
export interface ListenAddress {
  host: string;
  port: number;
}

/** What commands may change, and whether they reach the network. */
export interface Confinement {
  readonly profile: "off" | "workspace-write" | "read-only";
  readonly network: boolean;
}

/** How commands are confined where an agent says nothing else. */
export interface SandboxSettings extends Confinement {
  /** The agents that differ. */
  readonly agents: ReadonlyMap<string, Confinement>;
  /** Whether the file wants one: then a server that cannot have it does not start. */
  readonly required: boolean;
  /** Further directories that `workspace-write` leaves writable. */
  readonly writable: readonly string[];
  /** Files of the operator that no command may see (canonical); the data directory comes on top. */
  readonly hidden: readonly string[];
}

/** What requests are measured by. */
export interface ConfigLimits {
  requestBytes: number;
  inputBytes: number;
  outputBytes: number;
  /** How long a tool runs if neither the call nor the tool says. */
  timeoutMs: number;
  /** The longest run of a tool. */
  maxTimeoutMs: number;
  /** Open asks of one session tree. */
  openAsks: number;
  /** Open calls of one session. */
  runningCalls: number;
}

/** What a process is started in. */
export interface Environment {
  env: Readonly<Record<string, string | undefined>>;
  home: string;
  /** The current directory. */
  directory: string;
}

/** Reads the process's environment; nothing else does, so whoever calls `loadConfig` decides what it sees. */
export function readEnvironment(): Environment {
  return { env: process.env, home: homedir(), directory: process.cwd() };
}

/** Merges flags, `TOOLGATE_*`, the file and the defaults; throws `ConfigError` rather than let a server start unsafely. */
export function loadConfig(flags: Flags, environment: Environment): Config {
  const { env, home, directory } = environment;
  const { file, written, lineOf, settings } = mergeSettings(flags, environment);
  const listen = parseAddress(settings.listen ?? "127.0.0.1:7420");
  checkListen(listen.host, settings);
  const workspaces = openRoots(roots(settings, flags.workspace ?? env.TOOLGATE_WORKSPACE, directory));
  const data = settings.data ?? defaultData(environment);
  checkDataDirectory(data, workspaces);
  if (written !== undefined) checkOutside(file, "the configuration file", workspaces);
  for (const plugin of settings.plugin ?? []) checkOutside(plugin, "the plugin", workspaces);
  const dataDirectory = createPrivateDirectory(data);
  const insecureNoAuth = settings.insecure_no_auth ?? false;
  const store = settings.store ?? "sqlite";

  return deepFreeze({
    file: canonicalPath(file),
    dataDirectory,
    trustDirectory: trustIn(dataDirectory),
    store,
    listen,
    tls: readTls(settings, workspaces),
    hosts: settings.hosts ?? [],
    origins: settings.origins ?? [],
    workspaces,
    policy: readPolicy(settings, lineOf, home),
    tokens: readTokens({ settings, env, workspaces, dataDirectory, insecureNoAuth, makeOwn: store === "sqlite" }),
    insecureNoAuth,
    unattended: settings.unattended ?? "wait",
    askMs: settings.ask_ms ?? 900_000,
    leaseMs: settings.lease_ms ?? 15_000,
    drainMs: settings.drain_ms ?? 30_000,
    logLevel: settings.log_level ?? "info",
    tracing: readTracing(env),
    plugins: settings.plugin ?? [],
    experimental: settings.experimental ?? [],
    limits: readLimits(settings.limits),
    sandbox: readSandbox(settings, written === undefined ? [] : [file]),
  });
}

/** Where a service with these flags would keep its data, and which code is trusted; nothing is created. */
export function findService(
  flags: Flags,
  environment: Environment,
): Required<Pick<Config, "serviceDirectory" | "trustDirectory">> {
  const serviceDirectory = canonicalPath(mergeSettings(flags, environment).settings.data ?? defaultData(environment));
  return { serviceDirectory, trustDirectory: trustIn(serviceDirectory) };
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

/** Checks what a configuration file says, without its directories, addresses and tokens: nothing is created or started. */
export async function checkConfig(
  named: string | undefined,
  environment: Environment,
  tools: readonly AskingTool[],
): Promise<{ file: string; rules: number; tests: number; findings: Finding[] }> {
  const file = configFile(named ?? environment.env.TOOLGATE_CONFIG, environment);
  const read = isWorkspaceFile(file) ? readWorkspaceSettings(file) : readSettings(file, environment.home);
  if (!read) throw new ConfigError(`the configuration file ${file} does not exist; create it, or name another one`);
  const { home } = environment;
  const policy = readPolicy(read.settings, read.lineOf, home);
  const dataDirectory = read.settings.data ?? defaultData(environment);
  const lists = [policy.config, ...policy.agents.values()];
  return {
    file,
    rules: lists.reduce((sum, { rules }) => sum + rules.length, 0),
    tests: policy.tests.length,
    findings: await checkPolicy(policy, { home, dataDirectory, tools }),
  };
}

function configFile(explicit: string | undefined, { env, home, directory }: Environment): string {
  const configHome = env.XDG_CONFIG_HOME || join(home, ".config");
  return resolve(directory, explicit ?? join(configHome, "toolgate", "toolgate.toml"));
}

function defaultData({ env, home }: Environment): string {
  return join(env.XDG_DATA_HOME || join(home, ".local", "share"), "toolgate");
}

/** The configured roots, and as `default` the directory that was named, or the current one if no root is configured. */
function roots(settings: Settings, named: string | undefined, directory: string): Readonly<Record<string, string>> {
  if (named !== undefined) return { ...settings.workspace, default: resolve(directory, named) };
  return settings.workspace ?? { default: directory };
}

function parseAddress(text: string): ListenAddress {
  const colon = text.lastIndexOf(":");
  const host = text.slice(0, colon).replace(/^\[|\]$/g, "");
  const port = Number(text.slice(colon + 1));
  if (port <= 65_535) return { host, port };
  throw new ConfigError(`listen ${text}: the port ${port} is too high; choose one from 0 (any free one) to 65535`);
}

function checkListen(host: string, { insecure_no_auth, insecure_listen, tls_cert }: Settings): void {
  if (/^(localhost|127\.\d+\.\d+\.\d+|::1)$/i.test(host)) return;
  if (insecure_no_auth) {
    throw new ConfigError(
      `--insecure-no-auth lets everybody approve, and ${host} can be reached from other machines; listen on 127.0.0.1 or use tokens`,
    );
  }
  if (insecure_listen || tls_cert !== undefined) return;
  throw new ConfigError(
    `listening on ${host} sends tokens over the network unencrypted; give a certificate with --tls-cert and --tls-key, listen on 127.0.0.1 behind a proxy with TLS, or accept it with --allow-insecure-listen`,
  );
}

function readSandbox(settings: Settings, files: readonly string[]): SandboxSettings {
  const { agent = {}, writable = [], ...own } = settings.sandbox ?? {};
  const named = [own, ...Object.values(agent)].map(({ profile }) => profile);
  const keys = settings.tls_key === undefined ? [] : [settings.tls_key];
  const tokens = (settings.token ?? []).flatMap(({ file }) => (file === undefined ? [] : [file]));
  return {
    ...confinement(own),
    agents: new Map(Object.entries(agent).map(([name, other]) => [name, confinement({ ...own, ...other })])),
    required: named.some((profile) => profile !== undefined && profile !== "off"),
    writable: writable.map(canonicalPath),
    hidden: [...files, ...keys, ...tokens].map(canonicalPath),
  };
}

function confinement({ profile = "workspace-write", network = true }: Settings["sandbox"] = {}): Confinement {
  return { profile, network };
}

function readLimits(limits: Settings["limits"] = {}): ConfigLimits {
  const read = {
    requestBytes: limits.request_bytes ?? 4_194_304,
    inputBytes: limits.input_bytes ?? 524_288,
    outputBytes: limits.output_bytes ?? 268_435_456,
    timeoutMs: limits.timeout_ms ?? 120_000,
    maxTimeoutMs: limits.max_timeout_ms ?? 3_600_000,
    openAsks: limits.open_asks ?? 100,
    runningCalls: limits.running_calls ?? 64,
  };
  if (read.timeoutMs <= read.maxTimeoutMs && read.inputBytes <= read.requestBytes) return read;
  throw new ConfigError(
    "limits: timeout_ms may not be over max_timeout_ms, nor input_bytes over request_bytes; correct one of the two",
  );
}

function deepFreeze<T>(value: T): T {
  if (typeof value !== "object" || value === null) return value;
  const parts = value instanceof Map ? value.values() : Object.values(value);
  for (const part of parts) deepFreeze(part);
  return Object.freeze(value);
}
