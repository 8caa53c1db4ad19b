import { resolve } from "node:path";
import type { Flags } from "../config.ts";
import { checkScalars, type Scalars, scalarKeys } from "./file.ts";

/** What `TOOLGATE_*` sets; relative paths are meant from `directory`. */
export function fromEnvironment(env: Readonly<Record<string, string | undefined>>, directory: string): Scalars {
  const raw = scalarKeys.map((key) => [key, fromText(key, env[variable(key)])]);
  return withPath(checkScalars(Object.fromEntries(raw), "the environment", variable), directory);
}

/** What the command line sets; relative paths are meant from `directory`. */
export function fromFlags(flags: Flags, directory: string): Scalars {
  const raw = {
    listen: flags.listen,
    data: flags.data,
    unattended: flags.unattended,
    log_level: flags.logLevel,
    insecure_no_auth: flags.insecureNoAuth,
    insecure_listen: flags.allowInsecureListen,
  };
  return withPath(checkScalars(raw, "the command line", flagName), directory);
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

function withPath(scalars: Scalars, directory: string): Scalars {
  return scalars.data === undefined ? scalars : { ...scalars, data: resolve(directory, scalars.data) };
}
