import { resolve } from "node:path";
import { checkScalars, type Scalars, scalarKeys, withPaths } from "./file.ts";

/** The flags of `toolgate serve`; each overrides the environment, which overrides the file. */
export interface Flags {
  config?: string;
  listen?: string;
  data?: string;
  tlsCert?: string;
  tlsKey?: string;
  tlsClientCa?: string;
  workspace?: string;
  unattended?: string;
  logLevel?: string;
  insecureNoAuth?: boolean;
  allowInsecureListen?: boolean;
  newStore?: boolean;
  opencode?: boolean;
}

/** Reads the settings of `TOOLGATE_*`; relative paths start at `directory`. */
export function fromEnvironment(env: Readonly<Record<string, string | undefined>>, directory: string): Scalars {
  const raw = scalarKeys.map((key) => [key, fromText(key, env[variable(key)])]);
  const set = checkScalars(Object.fromEntries(raw), "the environment", variable);
  return withPaths(set, (path) => resolve(directory, path));
}

/** Reads the settings of the command line; relative paths start at `directory`. */
export function fromFlags(flags: Flags, directory: string): Scalars {
  const raw = {
    listen: flags.listen,
    data: flags.data,
    tls_cert: flags.tlsCert,
    tls_key: flags.tlsKey,
    tls_client_ca: flags.tlsClientCa,
    unattended: flags.unattended,
    log_level: flags.logLevel,
    insecure_no_auth: flags.insecureNoAuth,
    insecure_listen: flags.allowInsecureListen,
  };
  const set = checkScalars(raw, "the command line", flagName);
  return withPaths(set, (path) => resolve(directory, path));
}

const variable = (key: string) => `TOOLGATE_${key.toUpperCase()}`;
const flagName = (key: string) =>
  key === "insecure_listen" ? "--allow-insecure-listen" : `--${key.replaceAll("_", "-")}`;

function fromText(key: string, text: string | undefined): unknown {
  if (text === undefined || text === "") return undefined;
  if (key.endsWith("_ms")) return Number(text);
  if (key.startsWith("insecure_") && (text === "true" || text === "false")) return text === "true";
  return text;
}
