import { X509Certificate } from "node:crypto";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { createSecureContext } from "node:tls";
import type { CodeSettings } from "../core/language-server.ts";
import type { LogRotation } from "../core/log-file.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import { readApprovals } from "./approval.ts";
import { type CertificateSettings, type JwtSettings, readClientCerts, readJwt } from "./jwt.ts";
import { type CamelKeys, camelKeys } from "./keys.ts";
import { readLanguageServers } from "./language-servers.ts";
import {
  canonicalPath,
  checkDataDirectory,
  checkOutside,
  createPrivateDirectory,
  openRoots,
  readOperatorFile,
} from "./paths.ts";
import { type GroupSettings, namePersons, type OidcSettings, readPeople } from "./people.ts";
import { readPolicy, readShadow, type ShadowSettings, type WrittenPolicy } from "./policy.ts";
import {
  type AgentRunnerSettings,
  readAgentRunners,
  readToolProcesses,
  readUpstreamServers,
  type ToolProcessSettings,
  type UpstreamServerSettings,
} from "./programs.ts";
import { type AuditExportSettings, type ChannelSettings, readAuditExports, readReach } from "./reach.ts";
import { readSandbox, type SandboxSettings } from "./sandbox.ts";
import type { Limits, Settings } from "./schema.ts";
import { readSearch } from "./search.ts";
import { defaultSettings, type Flags, overrideSettings, readSettings } from "./sources.ts";
import { readTokens, type Token } from "./tokens.ts";
import { ConfigError } from "./toml.ts";

export { createGitFiles } from "./git-files.ts";
export { checkPolicy, configuredRules, type Finding, ruleLine } from "./policy.ts";
export type {
  AgentRunnerSettings,
  ToolProcessSettings,
  UpstreamProgram,
  UpstreamServerSettings,
} from "./programs.ts";
export type { Confinement, SandboxSettings } from "./sandbox.ts";
export { type Limits, type ListenAddress, readLimits } from "./schema.ts";
export { searchWarnings } from "./search.ts";
export type { Flags } from "./sources.ts";
export { type Token, tokenWarnings } from "./tokens.ts";
export { ConfigError } from "./toml.ts";
export { createWorkspaceRules, workspaceRuleLine } from "./workspace-rules.ts";

/** Settings that `Config` has in another form. */
type ReadSetting =
  | ("data" | "workspace" | "permission" | "agent" | "permission_test" | "token" | "sandbox" | "limits" | "log")
  | ("tls_cert" | "tls_key" | "tls_client_ca" | "insecure_listen" | "require_other_user" | "mcp_hold_ms" | "mcp_hold")
  | (
      | "rest"
      | "plugin"
      | "tools"
      | "websearch"
      | "codesearch"
      | "lsp"
      | "mcp"
      | "agent_runner"
      | "jwt"
      | "client_cert"
      | "oidc"
      | "channel"
      | "notify"
      | "audit_export"
      | "approval"
      | "role_map"
      | "group"
      | "shadow"
    );

/**
 * The complete configuration of a service: the keys of the schema as they are, by their names in camel case, and those that are
 * read further. No other part reads flags, environment or the file.
 */
export interface Config extends CamelKeys<Omit<Settings, ReadSetting>>, SearchSettings, CodeSettings {
  /** The canonical path of the configuration file, which may not exist: the engine denies it to every tool. */
  readonly file: string;
  /** Contains the store, outputs, tokens and logs (canonical, 0700). */
  readonly dataDirectory: string;
  /** The data directory of this user's service, if it is another one (canonical): no tool may touch it either. */
  readonly serviceDirectory?: string;
  /** Contains the list of workspaces whose code is trusted. */
  readonly trustDirectory: string;
  /** True to begin without records beside the traces of a store that was lost. */
  readonly newStore?: boolean;
  /** Undefined: no encryption. */
  readonly tls: Tls | undefined;
  /** Root name → canonical directory. */
  readonly workspaces: ReadonlyMap<string, string>;
  /** Rules, and the agents that calls may be made as. */
  readonly policy: WrittenPolicy;
  /** Rules that are judged beside those of `policy`, and their canonical file. */
  readonly shadow: ShadowSettings | undefined;
  /** Empty only with `insecureNoAuth`. */
  readonly tokens: readonly Token[];
  /** Tokens of issuers that are accepted; the first entry that a token meets decides. */
  readonly jwt: readonly JwtSettings[];
  /** Client certificates that are accepted in place of a token; the first entry that one meets decides. */
  readonly clientCerts: readonly CertificateSettings[];
  /** Channels that notices are sent to, and the requests that are. */
  readonly channels: readonly ChannelSettings[];
  readonly notify: ReturnType<typeof readReach>["notify"];
  /** Receivers of the audit. */
  readonly auditExports: readonly AuditExportSettings[];
  /** Identity providers at which people sign in. */
  readonly oidc: readonly OidcSettings[];
  readonly groups: readonly GroupSettings[];
  /** The file of the caller token that the service created, if no token is configured. */
  readonly callerTokenFile?: string;
  /** The file in which `toolgate login` of this user stores credentials; no tool may read it. */
  readonly loginFile?: string;
  /** True if an answer from this machine needs another user of the operating system than its call. */
  readonly requiresOtherUser: boolean;
  /** Times for which calls of MCP clients are held; the first entry, without a name, is for all other clients. */
  readonly mcpHolds: readonly McpHoldTime[];
  /** True if the door for clients of opencode is open. */
  readonly servesOpencode: boolean;
  readonly logRotation: LogRotation;
  /** True if OpenTelemetry spans are exported. */
  readonly tracing: boolean;
  /** Files of plugins, outside of every workspace. */
  readonly plugins: readonly { readonly path: string; readonly optional: boolean }[];
  /** Directories of the user's skills, the first one taking precedence. */
  readonly skillDirectories: readonly string[];
  /** Programs that run agents for `task`. */
  readonly agentRunners: readonly AgentRunnerSettings[];
  /** Settings of the processes that run tool files and plugins. */
  readonly toolProcesses: ToolProcessSettings;
  /** MCP servers whose tools are offered. */
  readonly upstreamServers: readonly UpstreamServerSettings[];
  readonly limits: Limits;
  readonly sandbox: SandboxSettings;
}

/** Times for which calls of an MCP client are held before the client gets an answer that is not their result. */
export interface McpHoldTime {
  /** Name that the client reports about itself; empty for all clients that are not named. */
  readonly client: string;
  readonly httpMs: number;
  readonly stdioMs: number;
}

/** The environment of a process. */
export interface Environment {
  env: Readonly<Record<string, string | undefined>>;
  /** Absent: no socket is handed over. */
  pid?: number;
  home: string;
  /** The current directory. */
  directory: string;
}

/** Reads the environment of the process. Nothing else in this folder does, so the caller of `loadConfig` controls its input. */
export function readEnvironment(): Environment {
  return { env: process.env, pid: process.pid, home: homedir(), directory: process.cwd() };
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
  const { file, isWritten, lineOf, settings } = mergeSettings(flags, environment);
  const { data, workspace, permission, agent, permission_test, token, sandbox, limits, log, ...others } = settings;
  const { tls_cert, tls_key, tls_client_ca, insecure_listen, require_other_user, mcp_hold_ms, mcp_hold, ...read } =
    others;
  const { rest, plugin, tools, websearch, codesearch, lsp, mcp, agent_runner, jwt, client_cert, channel, ...named } =
    read;
  const { notify, approval, audit_export, ...persons } = named;
  const { oidc, role_map, group, shadow, ...plain } = persons;
  checkListen(plain.listen.host, settings);
  // The current directory is that of the check, not of the service.
  const workspaces = openRoots(workspace ?? (isCheck ? {} : { default: directory }));
  const place = data ?? defaultData(environment);
  checkDataDirectory(place, workspaces);
  if (isWritten) checkOutside(file, "the configuration file", workspaces);
  const plugins = plugin.map(readPlugin);
  for (const { path } of plugins) checkOutside(path, "the plugin", workspaces);
  const tried = shadow.file === undefined ? undefined : readShadow(shadow.file, home, workspaces);
  checkWorkspaceNames(plain.workspace_plugins, workspaces);
  const dataDirectory = isCheck ? canonicalPath(place) : createPrivateDirectory(place);
  const sources = { env, workspaces };
  const { tokens, generated } = readTokens({
    ...{ settings, file, env, workspaces, dataDirectory, insecureNoAuth: plain.insecure_no_auth },
    ...{ makeOwn: plain.store === "sqlite", isCheck },
  });

  const source = { file, lineOf, workspaces };
  const knownPeople = readPeople({ oidc, role_map, group }, source);
  return deepFreeze({
    ...camelKeys(plain),
    listen: { ...plain.listen, ...handedSocket(environment) },
    ...{ file: canonicalPath(file), dataDirectory, trustDirectory: trustIn(dataDirectory) },
    ...(flags.newStore && { newStore: true }),
    clientCerts: readClientCerts(settings, source),
    ...{ tls: readTls(settings, workspaces), workspaces, shadow: tried },
    policy: {
      ...readPolicy(settings, lineOf, home),
      approvals: readApprovals({ approval, channel, ...plain }, knownPeople.groups, home, source),
    },
    tokens: namePersons(tokens, settings, source),
    jwt: readJwt(jwt, source),
    ...knownPeople,
    ...readReach({ channel, notify, public_url: plain.public_url, group, oidc }, source),
    auditExports: readAuditExports(audit_export, plain, source),
    ...(generated !== undefined && { callerTokenFile: generated }),
    loginFile: canonicalPath(resolve(directory, userDirectory(environment), "credentials.json")),
    requiresOtherUser: require_other_user,
    mcpHolds: readMcpHolds(settings),
    servesOpencode: rest.enabled,
    logRotation: { maxBytes: log.max_bytes, maxAgeMs: log.max_age_hours * 3_600_000, maxFiles: log.max_files },
    tracing: readTracing(env),
    plugins,
    skillDirectories: userSkillDirectories(canonicalPath(file), home),
    agentRunners: readAgentRunners(settings, sources),
    toolProcesses: readToolProcesses(tools, sources),
    upstreamServers: readUpstreamServers(mcp, sources),
    ...readLanguageServers(lsp, sources),
    ...readSearch(settings, sources),
    limits: camelKeys(limits),
    sandbox: readSandbox(settings, [...(isWritten ? [file] : []), ...(tried ? [tried.file] : [])]),
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
  const { store } = settings;
  if (store === "sqlite") checkDataExists(dataDirectory);
  return { store, dataDirectory };
}

/** Refuses a data directory that no service has made: what is written there would reach none. */
export function checkDataExists(dataDirectory: string): void {
  if (existsSync(dataDirectory)) return;
  throw new ConfigError(
    `there is no data directory ${dataDirectory}: name the one of the service with --data DIR, or start the service first`,
  );
}

/** Reads which socket systemd hands over: the first descriptor, if it means this process. */
function handedSocket({ env: { LISTEN_FDS, LISTEN_PID }, pid }: Environment): { descriptor?: number } {
  if (pid === undefined || LISTEN_PID !== `${pid}` || !LISTEN_FDS) return {};
  if (LISTEN_FDS === "1") return { descriptor: firstHandedDescriptor };
  throw new ConfigError(`the socket unit hands over ${LISTEN_FDS} sockets; leave one ListenStream in it`);
}

const firstHandedDescriptor = 3;

const trustIn = (data: string) => join(data, "trust");

function mergeSettings(flags: Flags, environment: Environment) {
  const { env, home, directory } = environment;
  const explicitFile = flags.config ?? env.TOOLGATE_CONFIG;
  const file = configFile(explicitFile, environment);
  const written = readSettings(file, home);
  if (written === undefined && explicitFile !== undefined) {
    throw new ConfigError(`the configuration file ${file} does not exist; create it, or leave out --config`);
  }
  const { settings, lineOf } = written ?? { settings: defaultSettings(), lineOf: () => undefined };
  return {
    file,
    isWritten: written !== undefined,
    lineOf,
    settings: overrideSettings(settings, flags, env, directory),
  };
}

/** Returns the path of the configuration file: the explicit one, or the default of this user. */
export function configFile(explicit: string | undefined, environment: Environment): string {
  return resolve(environment.directory, explicit ?? join(userDirectory(environment), "toolgate.toml"));
}

/** Returns the directory of this user's configuration. */
function userDirectory({ env, home }: Environment): string {
  return join(env.XDG_CONFIG_HOME || join(home, ".config"), "toolgate");
}

/** Returns the default data directory of this user. */
export function defaultData({ env, home }: Environment): string {
  return join(env.XDG_DATA_HOME || join(home, ".local", "share"), "toolgate");
}

/** Returns the directories of the user's skills: beside the configuration file, and those of opencode in the home directory. */
export function userSkillDirectories(file: string, home: string): string[] {
  return [dirname(file), join(home, ".opencode")].flatMap((path) =>
    ["skill", "skills"].map((name) => join(path, name)),
  );
}

function readPlugin(plugin: Settings["plugin"][number]): Config["plugins"][number] {
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

/** Reads the times of MCP clients. Most clients abandon a request after 60 s, so that the default is below that. */
function readMcpHolds({
  mcp_hold_ms: otherMs,
  mcp_hold: named,
}: Pick<Settings, "mcp_hold_ms" | "mcp_hold">): McpHoldTime[] {
  const known: Readonly<Record<string, { ms?: number | undefined; stdio_ms?: number | undefined }>> = {
    ...knownClients,
    ...named,
  };
  const clients = Object.entries(known).map(([client, { ms = otherMs, stdio_ms: stdioMs = ms }]) => ({
    client,
    httpMs: ms,
    stdioMs,
  }));
  return [{ client: "", httpMs: otherMs, stdioMs: otherMs }, ...clients];
}

/** Clients that wait for longer or shorter than most. */
const knownClients = { "claude-code": { stdio_ms: 1_800_000 }, "openai-agents": { ms: 4_000 } };

/**
 * Reads from the standard environment of OpenTelemetry if spans are exported: an OTLP endpoint is set, or
 * OTEL_TRACES_EXPORTER is `otlp`. The exporter itself reads the other variables.
 */
function readTracing(env: Readonly<Record<string, string | undefined>>): boolean {
  const exporters = env.OTEL_TRACES_EXPORTER?.split(",").map((name) => name.trim());
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const wanted = exporters?.some((name) => name !== "") ? exporters.includes("otlp") : Boolean(endpoint);
  if (!wanted || env.OTEL_SDK_DISABLED?.toLowerCase() === "true") return false;
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || "http/protobuf";
  if (protocol === "http/protobuf") return true;
  throw new ConfigError(
    `the environment sets the OTLP protocol "${protocol}", but only http/protobuf is supported; set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf and the endpoint to the collector's HTTP port (usually 4318), or set OTEL_TRACES_EXPORTER to none`,
  );
}

/** Certificates and key of the service, as PEM text. */
export interface Tls {
  /** The certificate of the service, followed by its chain. */
  readonly cert: string;
  readonly key: string;
  /** The authorities of client certificates. Undefined: clients need no certificate. */
  readonly clientCa: string | undefined;
}

/** Refuses an address that other machines can reach without authentication or encryption. */
function checkListen(host: string, settings: Settings): void {
  const { insecure_no_auth, insecure_listen, tls_cert } = settings;
  if (/^(localhost|127\.\d+\.\d+\.\d+|::1)$/i.test(host)) return;
  if (insecure_no_auth) {
    throw new ConfigError(
      `--insecure-no-auth lets every client approve, and other machines can reach ${host}; listen on 127.0.0.1 or use tokens`,
    );
  }
  if (insecure_listen || tls_cert !== undefined) return;
  throw new ConfigError(
    `listening on ${host} sends tokens over the network unencrypted; give a certificate with --tls-cert and --tls-key, listen on 127.0.0.1 behind a proxy with TLS, or accept it with --allow-insecure-listen`,
  );
}

/** Reads the TLS files, and refuses invalid or incomplete ones; undefined if TLS is not configured. */
function readTls(settings: Settings, workspaces: ReadonlyMap<string, string>): Tls | undefined {
  const { tls_cert, tls_key, tls_client_ca } = settings;
  if (tls_cert === undefined && tls_key === undefined && tls_client_ca === undefined) return undefined;
  if (tls_cert === undefined || tls_key === undefined) {
    const missing = tls_cert === undefined ? "tls_cert" : "tls_key";
    throw new ConfigError(
      `TLS needs a certificate and its key, but ${missing} is not set; set both tls_cert and tls_key, or no TLS setting`,
    );
  }
  const cert = read("tls_cert", tls_cert, workspaces);
  const key = read("tls_key", tls_key, workspaces);
  try {
    createSecureContext({ cert, key });
  } catch (cause) {
    throw new ConfigError(
      `tls_cert ${tls_cert} and tls_key ${tls_key} cannot be used together (${reason(cause)}); name a certificate and its own unencrypted key, both PEM`,
      { cause },
    );
  }
  return { cert, key, clientCa: tls_client_ca === undefined ? undefined : readAuthority(tls_client_ca, workspaces) };
}

function readAuthority(file: string, workspaces: ReadonlyMap<string, string>): string {
  const text = read("tls_client_ca", file, workspaces);
  try {
    new X509Certificate(text);
    return text;
  } catch (cause) {
    throw new ConfigError(`tls_client_ca ${file} is not a certificate (${reason(cause)}); name a PEM file`, { cause });
  }
}

function read(setting: string, file: string, workspaces: ReadonlyMap<string, string>): string {
  checkOutside(file, setting, workspaces);
  return readOperatorFile(file, setting, "create it, or correct the path or its permissions");
}

const reason = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));
