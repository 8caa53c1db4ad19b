import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import ipaddr from "ipaddr.js";
import { z } from "zod";
import { roleNames } from "../core/principal.ts";
import { check, checkToml, strictTable } from "./check.ts";
import { ConfigError } from "./errors.ts";
import { lspTable, withServerPaths } from "./language-servers.ts";
import { configuredPlugin } from "./plugin-file.ts";
import { name, permissionTest, policyTables } from "./policy-tables.ts";
import { searchTables, withSearchPaths } from "./search.ts";
import type { Toml } from "./toml.ts";
import { toolsTable } from "./tool-processes.ts";
import { upstreamTable, withAbsolutePaths } from "./upstream-servers.ts";

const day = 86_400_000;
const listen = z.string().regex(/^(\[[0-9a-fA-F:.]+\]|[^\s:[\]]+):\d{1,5}$/, {
  error: 'write it as HOST:PORT, such as "127.0.0.1:7420" or "[::1]:7420"',
});
const ms = z.int({
  error: ({ code }) => (code === "invalid_type" ? "write a whole number of milliseconds" : undefined),
});
const milliseconds = (max: number) => ms.min(1).max(max);
const count = z.int().min(1).max(1_000_000);
const bytes = (max: number) => z.int().min(1024).max(max);

/** Settings of the file, the environment and the flags. */
const scalars = {
  listen: listen.optional(),
  health_listen: listen.optional(),
  data: z.string().min(1).optional(),
  store: z
    .string()
    .regex(/^(sqlite$|rediss?:\/\/|redis\+(unix|sentinel|cluster):\/\/)/, {
      error:
        'write "sqlite", or a URL that begins with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://',
    })
    .optional(),
  tls_cert: z.string().min(1).optional(),
  tls_key: z.string().min(1).optional(),
  tls_client_ca: z.string().min(1).optional(),
  unattended: z.enum(["wait", "deny"]).optional(),
  plain_always: z.enum(["narrowest", "tool"]).optional(),
  ask_ms: milliseconds(day).optional(),
  lease_ms: ms.min(1000).max(600_000).optional(),
  drain_ms: ms.min(0).max(3_600_000).optional(),
  mcp_hold_ms: milliseconds(day).optional(),
  log_level: z.enum(["debug", "info", "warn", "error"]).optional(),
  insecure_no_auth: z.boolean().optional(),
  insecure_listen: z.boolean().optional(),
};

const tokenSources = ["value", "file", "env", "sha256"] as const;

const token = strictTable({
  id: name,
  roles: z.array(z.enum(roleNames)).min(1),
  agents: z.array(z.string().min(1)).optional(),
  workspaces: z.array(z.string().min(1)).optional(),
  tools: z
    .array(z.string().regex(/^[A-Za-z0-9_*-]{1,64}$/, { error: "a tool's name, or a pattern such as ci_*" }))
    .optional(),
  permissions: z.array(z.string().min(1)).optional(),
  calls: z.array(z.string().min(1)).optional(),
  idempotent: z.boolean().optional(),
  pin: z.array(z.string().regex(/^[0-9a-f]{32}$/, { error: "the ID of a definition has 32 hex digits" })).optional(),
  value: z.string().optional(),
  file: z.string().optional(),
  env: z.string().optional(),
  sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/, { error: "write the 64 hex digits that `printf %s TOKEN | sha256sum` prints" })
    .optional(),
}).refine((token) => tokenSources.filter((source) => token[source] !== undefined).length === 1, {
  error: "a token has exactly one of value, file, env and sha256",
});

const origin = z.string().refine((text) => URL.canParse(text) && new URL(text).origin === text, {
  error: 'an origin is scheme, host and port without a path, such as "https://console.example"',
});

const address = z.string().refine((text) => ipaddr.isValid(text) || ipaddr.isValidCIDR(text), {
  error: 'an address or a network, such as "10.0.0.5" or "10.0.0.0/24"',
});

/** Settings of the confinement of commands. */
const confinement = {
  profile: z.enum(["off", "workspace-write", "read-only"]).optional(),
  network: z.union([z.enum(["proxy", "none", "open"]), z.boolean()]).optional(),
  unix_sockets: z.boolean().optional(),
  ptrace: z.boolean().optional(),
};

/** Times for which calls of one MCP client are held: over both transports, or over stdio. */
const mcpHold = strictTable({ ms: milliseconds(day).optional(), stdio_ms: milliseconds(day).optional() });

/** A plugin without which calls run if it cannot be loaded. */
const optionalPlugin = strictTable({ path: z.string().min(1), optional: z.boolean().optional() });

/** A program that runs agents over the Agent Client Protocol. */
const agentRunner = strictTable({
  command: z.string().min(1),
  args: z.array(z.string()).optional(),
  env: z.array(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, { error: "the name of a variable" })).optional(),
  agents: z.array(name).min(1),
  cwd: z.string().min(1).optional(),
});

const settings = strictTable({
  ...policyTables,
  ...scalars,
  require_other_user: z.boolean().optional(),
  store_strict: z.boolean().optional(),
  store_copies: z.int().min(0).max(100).optional(),
  store_min_free: z.int().min(1).max(1_099_511_627_776).optional(),
  hosts: z.array(z.string().min(1)).optional(),
  origins: z.array(origin).optional(),
  trusted_proxies: z.array(address).optional(),
  plugin: z.array(z.union([z.string().min(1), optionalPlugin])).optional(),
  workspace_plugins: z.record(name, z.enum(["require", "optional", "off"])).optional(),
  agent_runner: z.record(name, agentRunner).optional(),
  mcp: z.record(name, upstreamTable).optional(),
  tools: toolsTable.optional(),
  lsp: lspTable.optional(),
  experimental: z.array(z.string().min(1)).optional(),
  ...searchTables,
  workspace: z.record(name, z.string().min(1)).optional(),
  permission_test: z.array(permissionTest).optional(),
  sandbox: strictTable({
    ...confinement,
    writable: z.array(z.string().min(1)).optional(),
    readable: z.array(z.string().min(1)).optional(),
    require: z.boolean().optional(),
    masks_max: z.int().min(0).max(1_000).optional(),
    memory_max: z.int().min(16_777_216).max(17_592_186_044_416).optional(),
    agent: z.record(name, strictTable(confinement)).optional(),
  }).optional(),
  log: strictTable({
    max_bytes: bytes(1_099_511_627_776).optional(),
    max_age_hours: z.int().min(1).max(87_600).optional(),
    max_files: z.int().min(1).max(1_000).optional(),
  }).optional(),
  mcp_hold: z.record(z.string().min(1), mcpHold).optional(),
  rest: strictTable({ enabled: z.boolean().optional() }).optional(),
  token: z.array(token).optional(),
  limits: strictTable({
    request_bytes: bytes(67_108_864).optional(),
    input_bytes: bytes(67_108_864).optional(),
    output_bytes: bytes(1_099_511_627_776).optional(),
    timeout_ms: milliseconds(3_600_000).optional(),
    max_timeout_ms: milliseconds(day).optional(),
    open_asks: count.optional(),
    running_calls: count.optional(),
    replica_running: count.optional(),
    report_ms: milliseconds(day).optional(),
    collect_ms: milliseconds(day).optional(),
    task_depth: z.int().min(0).max(30).optional(),
    running_tasks: count.optional(),
    runner_beat_ms: ms.min(1_000).max(600_000).optional(),
    runner_resume_ms: ms.min(0).max(600_000).optional(),
    connections: count.optional(),
    connections_per_address: count.optional(),
    connections_from_loopback: count.optional(),
    requests_without_token: count.optional(),
    public_request_bytes: bytes(67_108_864).optional(),
    body_ms: milliseconds(3_600_000).optional(),
    buffered_bytes: bytes(1_099_511_627_776).optional(),
  }).optional(),
});

/** The settings of `toolgate.toml`; `readSettings` makes their paths absolute. */
export type Settings = z.output<typeof settings>;

const scalarSettings = z.strictObject(scalars);

/** The settings that environment and flags can set too. */
export type Scalars = z.output<typeof scalarSettings>;

/** Their names. */
export const scalarKeys = Object.keys(scalars);

/** Reads a configuration file; undefined if it does not exist. Relative paths in it start at its own directory. */
export function readSettings(file: string, home: string): { settings: Settings; lineOf: Toml["lineOf"] } | undefined {
  const text = readIfThere(file);
  if (text === undefined) return undefined;
  const { value: read, lineOf } = checkToml(settings, text, file);
  const absolute = (path: string) => resolve(dirname(file), path.replace(/^~(?=\/|$)/, home));
  const absoluteSettings = {
    ...withPaths(read, absolute),
    ...withSearchPaths(read, absolute),
    ...(read.workspace === undefined ? {} : { workspace: mapValues(read.workspace, absolute) }),
    ...(read.sandbox && { sandbox: withSandboxPaths(read.sandbox, absolute) }),
    ...(read.plugin === undefined
      ? {}
      : { plugin: read.plugin.map((named) => configuredPlugin(named, file, absolute)) }),
    ...(read.agent_runner === undefined ? {} : { agent_runner: withPrograms(read.agent_runner, absolute) }),
    ...(read.mcp === undefined ? {} : { mcp: mapValues(read.mcp, (table) => withAbsolutePaths(table, absolute)) }),
    ...(read.lsp === undefined ? {} : { lsp: withServerPaths(read.lsp, absolute) }),
    ...(read.tools?.bun === undefined ? {} : { tools: { ...read.tools, bun: absolute(read.tools.bun) } }),
    ...(read.token === undefined
      ? {}
      : { token: read.token.map((one) => (one.file === undefined ? one : { ...one, file: absolute(one.file) })) }),
  };
  return { settings: absoluteSettings, lineOf };
}

/** Checks settings of the environment or the flags; `label` returns the name of a setting for errors. */
export function checkScalars(value: unknown, source: string, label: (key: string) => string): Scalars {
  const set = check(scalarSettings, value, source, ([key]) => label(String(key)));
  // An unset key must not override the same key of another source.
  return Object.fromEntries(Object.entries(set).filter(([, value]) => value !== undefined));
}

/** Makes the paths in settings absolute. */
export function withPaths<T extends Scalars>(set: T, absolute: (path: string) => string): T {
  const paths = (["data", "tls_cert", "tls_key", "tls_client_ca"] as const).flatMap((key) => {
    const path = set[key];
    return path === undefined ? [] : [[key, absolute(path)] as const];
  });
  return { ...set, ...Object.fromEntries(paths) };
}

/** Reads the text of a file; undefined if it does not exist. */
export function readIfThere(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    if (cause instanceof Error && "code" in cause && cause.code === "ENOENT") return undefined;
    throw new ConfigError(`${file} cannot be read; correct its permissions, or name another file with --config`, {
      cause,
    });
  }
}

function mapValues<T>(table: Readonly<Record<string, T>>, change: (value: T) => T): Record<string, T> {
  return Object.fromEntries(Object.entries(table).map(([key, value]) => [key, change(value)]));
}

/** Makes the paths of programs absolute; a name without a slash is looked up in PATH. */
function withPrograms(
  runners: NonNullable<Settings["agent_runner"]>,
  absolute: (path: string) => string,
): NonNullable<Settings["agent_runner"]> {
  const entries = Object.entries(runners).map(([key, runner]) => {
    const { command } = runner;
    return [key, { ...runner, command: command.includes("/") ? absolute(command) : command }];
  });
  return Object.fromEntries(entries);
}

/** Makes the paths of the sandbox absolute. */
function withSandboxPaths(
  { writable, readable, ...others }: NonNullable<Settings["sandbox"]>,
  absolute: (path: string) => string,
): NonNullable<Settings["sandbox"]> {
  return {
    ...others,
    ...(writable && { writable: writable.map(absolute) }),
    ...(readable && { readable: readable.map(absolute) }),
  };
}
