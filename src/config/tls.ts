import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { createSecureContext } from "node:tls";
import { ConfigError } from "./errors.ts";
import { checkOutside } from "./paths.ts";
import type { Settings } from "./schema.ts";

/** Certificates and key of the service, as PEM text. */
export interface Tls {
  /** The certificate of the service, followed by its chain. */
  readonly cert: string;
  readonly key: string;
  /** The authorities of client certificates. Undefined: clients need no certificate. */
  readonly clientCa: string | undefined;
}

/** Refuses an address that other machines can reach without authentication or encryption. */
export function checkListen(host: string, settings: Settings): void {
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
export function readTls(settings: Settings, workspaces: ReadonlyMap<string, string>): Tls | undefined {
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
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(`${setting} ${file} cannot be read; create it, or correct the path or its permissions`, {
      cause,
    });
  }
}

const reason = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));
