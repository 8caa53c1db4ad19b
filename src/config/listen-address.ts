import { ConfigError } from "./errors.ts";
import type { Settings } from "./file.ts";

/** The address to listen on. Port 0 takes a free port. */
export interface ListenAddress {
  host: string;
  port: number;
}

/** Parses HOST:PORT; the schema has checked its form. */
export function parseAddress(text: string): ListenAddress {
  const colon = text.lastIndexOf(":");
  const host = text.slice(0, colon).replace(/^\[|\]$/g, "");
  const port = Number(text.slice(colon + 1));
  if (port <= 65_535) return { host, port };
  throw new ConfigError(
    `the address ${text}: the port ${port} is too high; choose one from 0 (any free port) to 65535`,
  );
}

/** Refuses an address that other machines can reach without authentication or encryption. */
export function checkListen(host: string, { insecure_no_auth, insecure_listen, tls_cert }: Settings): void {
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
