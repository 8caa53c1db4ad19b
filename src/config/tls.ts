import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { createSecureContext } from "node:tls";
import { ConfigError } from "./errors.ts";
import type { Settings } from "./file.ts";
import { checkOutside } from "./paths.ts";

/** What a server speaks TLS with; each is PEM text. */
export interface Tls {
  /** The server's certificate, followed by those that lead to its root. */
  readonly cert: string;
  readonly key: string;
  /** Clients must have a certificate of one of these authorities. Undefined: clients need none. */
  readonly clientCa: string | undefined;
}

/** Reads the files and refuses what a server could not serve with; undefined if no TLS is configured. */
export function readTls(settings: Settings, workspaces: ReadonlyMap<string, string>): Tls | undefined {
  const { tls_cert, tls_key, tls_client_ca } = settings;
  if (tls_cert === undefined && tls_key === undefined && tls_client_ca === undefined) return undefined;
  if (tls_cert === undefined || tls_key === undefined) {
    const missing = tls_cert === undefined ? "tls_cert" : "tls_key";
    throw new ConfigError(
      `TLS needs a certificate and its key, and ${missing} is not set; set tls_cert and tls_key, or nothing of TLS`,
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
    throw new ConfigError(`tls_client_ca ${file} is no certificate (${reason(cause)}); name a PEM file`, { cause });
  }
}

function read(setting: string, file: string, workspaces: ReadonlyMap<string, string>): string {
  checkOutside(file, setting, workspaces);
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(`${setting} ${file} cannot be read; create it, or correct the path or its rights`, { cause });
  }
}

const reason = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));
