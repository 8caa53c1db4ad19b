import { existsSync } from "node:fs";
import { z } from "zod";
import { locateProgram } from "../core/locate-program.ts";
import { matcher } from "../policy/wildcard.ts";
import { strictTable } from "./check.ts";
import { canonicalPath, checkOutside } from "./paths.ts";

const variable = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, { error: "the name of a variable" });
const address = z.string().refine((text) => URL.canParse(text) && /^https?:$/.test(new URL(text).protocol), {
  error: 'an address with http:// or https://, such as "https://mcp.example/mcp"',
});
const maxTimeoutMs = 3_600_000;

/** The table of an MCP server: a program, or an address. */
export const upstreamTable = strictTable({
  command: z.string().min(1).optional(),
  args: z.array(z.string()).optional(),
  env: z.array(variable).optional(),
  folders: z.array(z.string().min(1)).optional(),
  hosts: z.array(z.string().min(1)).optional(),
  url: address.optional(),
  headers: z.record(z.string().min(1), z.string()).optional(),
  header_env: z.record(z.string().min(1), variable).optional(),
  tools: z.array(z.string().min(1)).optional(),
  patterns: z.record(z.string().min(1), z.string().min(1)).optional(),
  trusted: z.boolean().optional(),
  timeout_ms: z.int().min(1).max(maxTimeoutMs).optional(),
})
  .refine(({ command, url }) => (command === undefined) !== (url === undefined), {
    error: "an MCP server has exactly one of command and url",
  })
  .refine(
    ({ url, args, env, folders, hosts }) =>
      url === undefined || [args, env, folders, hosts].every((set) => set === undefined),
    {
      error: "args, env, folders and hosts are for a command; a url has headers and header_env",
    },
  )
  .refine(({ command, headers, header_env }) => command === undefined || (headers ?? header_env) === undefined, {
    error: "headers and header_env are for a url; a command has env",
  });

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
  /** The whole environment: PATH, HOME and the named variables. */
  readonly env: Readonly<Record<string, string>>;
  /** Canonical directories that it may read and change; the first one is its working directory. */
  readonly folders: readonly string[];
  /** Wildcards of the hosts that it reaches. */
  readonly hosts: readonly string[];
}

type Tables = Readonly<Record<string, z.output<typeof upstreamTable>>>;

/** Reads the MCP servers. Refuses programs that a tool could replace. */
export function readUpstreamServers(
  tables: Tables,
  env: Readonly<Record<string, string | undefined>>,
  workspaces: ReadonlyMap<string, string>,
): UpstreamServerSettings[] {
  return Object.entries(tables).map(([name, table]) => {
    const { command, url, tools, patterns = {}, trusted = false, timeout_ms: timeoutMs = defaultTimeoutMs } = table;
    const named = [...(table.env ?? []), ...Object.values(table.header_env ?? {})];
    const matches = tools?.map(matcher);
    const settings = {
      ...{ name, patterns: new Map(Object.entries(patterns)), isTrusted: trusted, timeoutMs },
      unset: named.filter((variable) => env[variable] === undefined),
      offers: (original: string) => matches?.some((match) => match(original)) ?? true,
    };
    const values = named.map((variable) => env[variable] ?? "");
    const key = JSON.stringify([table, values]);
    if (url !== undefined) {
      const { origin, pathname } = new URL(url);
      const secret = Object.entries(table.header_env ?? {}).map(([header, variable]) => [header, env[variable] ?? ""]);
      const headers = { ...table.headers, ...Object.fromEntries(secret) };
      return { ...settings, key, origin: `${origin}${pathname}`, remote: { url, headers } };
    }
    const { args = [], folders = [], hosts = [] } = table;
    const program = locateProgram(command ?? "", env.PATH);
    if (program !== undefined) checkOutside(program, `the program of mcp "${name}"`, workspaces);
    const variables = ["PATH", "HOME", ...(table.env ?? [])];
    return {
      ...settings,
      ...{ key, origin: [command, ...args].join(" ") },
      program: {
        ...{ command: command ?? "", args, hosts },
        folders: folders.map((folder) => canonicalPath(folder)),
        env: Object.fromEntries(variables.flatMap((key) => (env[key] === undefined ? [] : [[key, env[key]]]))),
      },
    };
  });
}

/** Finds what keeps servers from working: programs, folders and variables that are missing. */
export function upstreamWarnings(servers: readonly UpstreamServerSettings[]): { name: string; message: string }[] {
  return servers.flatMap(({ name, program, unset }) => {
    const isMissing = program !== undefined && locateProgram(program.command, program.env.PATH) === undefined;
    const problems = [
      ...(isMissing ? [`the program ${program.command} is not found; install it, or name its path in command`] : []),
      ...(program?.folders ?? [])
        .filter((folder) => !existsSync(folder))
        .map((folder) => `the folder ${folder} does not exist; create it, or take it out of folders`),
      ...unset.map((key) => `the variable ${key} is not set; set it, or take it out of the table`),
    ];
    return problems.map((problem) => ({ name, message: `mcp "${name}": ${problem}` }));
  });
}

/** Makes the paths in a table absolute; a program's name without a slash is looked up in PATH. */
export function withAbsolutePaths<T extends Tables[string]>(table: T, absolute: (path: string) => string): T {
  const { command, folders } = table;
  return {
    ...table,
    ...(command?.includes("/") && { command: absolute(command) }),
    ...(folders && { folders: folders.map(absolute) }),
  };
}

const defaultTimeoutMs = 60_000;
