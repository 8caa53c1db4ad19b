import { readFileSync } from "node:fs";
import { findToken } from "./find-token.ts";

/** Address, credentials and certificates of a connection. */
export interface ConnectOptions {
  /** Such as `http://127.0.0.1:7420`. */
  url: string;
  /** Sent as bearer token with each request. */
  token?: string;
  /** The authority that signed the server's certificate, PEM; default: the public ones. */
  ca?: string;
  /** A client certificate and its private key, PEM. */
  cert?: string;
  key?: string;
}

/** The address of a service that was started without --listen. */
export const defaultUrl = "http://127.0.0.1:7420";

/**
 * Completes what is not given as `toolgate` does: by TOOLGATE_URL, TOOLGATE_TOKEN, and the files that TOOLGATE_CA, TOOLGATE_CERT and
 * TOOLGATE_KEY name. The default token of a caller is the generated one of a service on this machine; a worker has none.
 */
export function findServer(given: Partial<ConnectOptions>, role: "caller" | "worker"): ConnectOptions {
  const { env } = process;
  if (given.token?.trim() === "")
    throw new Error("the token is empty: pass one, or leave it out to use TOOLGATE_TOKEN or the local caller token");
  const url = serverAddress(given.url ?? (env.TOOLGATE_URL || defaultUrl));
  const token = given.token ?? (role === "caller" ? findToken("caller", url, env) : env.TOOLGATE_TOKEN || undefined);
  const ca = given.ca ?? certificate("TOOLGATE_CA", env);
  const cert = given.cert ?? certificate("TOOLGATE_CERT", env);
  const key = given.key ?? certificate("TOOLGATE_KEY", env);
  return {
    ...{ url, ...(token !== undefined && { token }), ...(ca !== undefined && { ca }) },
    ...(cert !== undefined && { cert, ...(key !== undefined && { key }) }),
  };
}

/** Returns an address as a URL without a final slash; `host:port` alone means plain HTTP. */
function serverAddress(text: string): string {
  const url = text.includes("://") ? text : `http://${text}`;
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new Error(`"${text}" is not the address of a service: use one like ${defaultUrl}`);
  return url.replace(/\/+$/, "");
}

function certificate(name: string, env: NodeJS.ProcessEnv): string | undefined {
  const file = env[name];
  if (!file) return undefined;
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new Error(`${file} cannot be read: let ${name} name a readable PEM file`, { cause });
  }
}
