import { readFileSync } from "node:fs";
import { connectWith, type ToolgateClient } from "../../client/connect.ts";
import { defaultUrl } from "../../client/find-server.ts";
import { callerTokenFileOf, findToken, isLoopback, type TokenRole } from "../../client/find-token.ts";
import { loginFileOf } from "../../client/stored-logins.ts";
import { UsageError } from "../failure/failure.ts";

export type { TokenRole } from "../../client/find-token.ts";

/** The options that name the server and the credentials. */
export interface ServerOptions {
  server?: string;
  token?: string;
  tokenFile?: string;
  ca?: string;
  cert?: string;
  key?: string;
}

/** PEM texts: the authority that signed the server's certificate, and a client certificate. */
export interface Certificates {
  ca?: string;
  cert?: string;
  key?: string;
}

/** A token, a sentence about its origin for errors, and the next step if the server refuses it. */
export interface FoundToken {
  value: string | undefined;
  source: string;
  next?: string;
}

/** A connection to a server, with what errors and printed commands need to know about it. */
export interface ServerConnection extends ToolgateClient {
  /** A sentence about the token's origin. */
  tokenSource: string;
  /** The next step if the server refuses the token. */
  tokenAdvice: string;
  hasToken: boolean;
  /** Connects to the same server with another token. */
  as(token: FoundToken): ServerConnection;
}

/** Connects to a server with the given token. Nothing is sent before the first request. */
export function connectServer(url: string, token: FoundToken, certificates: Certificates = {}): ServerConnection {
  return {
    ...connectWith({ url, ...(token.value !== undefined && { token: token.value }), ...certificates }),
    tokenSource: token.source,
    tokenAdvice: token.next ?? `${token.source}; name the right one with --token-file FILE`,
    hasToken: token.value !== undefined,
    as: (other) => connectServer(url, other, certificates),
  };
}

/** The server's address: --server, otherwise TOOLGATE_URL, otherwise the default; `host:port` alone means plain HTTP. */
export function serverUrl({ server }: ServerOptions, env: NodeJS.ProcessEnv): string {
  const text = server ?? (env.TOOLGATE_URL || defaultUrl);
  const url = text.includes("://") ? text : `http://${text}`;
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new UsageError(`"${text}" is not the address of a server`, `use one like ${defaultUrl}`);
  return url.replace(/\/+$/, "");
}

/** The options that make a printed command reach the same server. */
export function serverWords(url: string): string[] {
  return url === defaultUrl ? [] : ["--server", url];
}

/** The token for a role: --token-file, otherwise --token or TOOLGATE_TOKEN, otherwise the one found on this machine. */
export function findServerToken(role: TokenRole, options: ServerOptions, env: NodeJS.ProcessEnv): FoundToken {
  const { token, tokenFile } = options;
  if (tokenFile !== undefined) return readTokenFile(tokenFile);
  if (token?.trim() === "")
    throw new UsageError("--token is empty", "give a token, or leave it out to use the one found on this machine");
  if (token !== undefined || env.TOOLGATE_TOKEN)
    return { value: token ?? env.TOOLGATE_TOKEN, source: "the token given by --token or TOOLGATE_TOKEN was sent" };
  return findLocalToken(role, serverUrl(options, env), env);
}

/** The token of this machine for a role: of an approver that of `toolgate login`, of a caller the generated one of a local service. */
export function findLocalToken(role: TokenRole, url: string, env: NodeJS.ProcessEnv): FoundToken {
  const { TOOLGATE_TOKEN: _, ...rest } = env;
  const value = findToken(role, url, rest);
  if (role === "approver") return storedSignIn(value, env);
  const file = callerTokenFileOf(env);
  if (value !== undefined) return { value, source: `the token in ${file} was sent` };
  return {
    value,
    source: isLoopback(url)
      ? `no token was sent: ${file} cannot be read`
      : "no token was sent: the one in the data directory is only for servers on this machine",
  };
}

function storedSignIn(value: string | undefined, env: NodeJS.ProcessEnv): FoundToken {
  if (value === undefined)
    return { value, source: "you are not signed in", next: "not signed in: run `toolgate login`" };
  const source = `the sign-in stored in ${loginFileOf(env)} was sent`;
  return { value, source, next: `${source}; sign in again with \`toolgate login\`` };
}

function readTokenFile(file: string): FoundToken {
  try {
    return { value: readFileSync(file, "utf8").trim(), source: `the token in ${file} was sent` };
  } catch (cause) {
    throw new UsageError(`the token file ${file} cannot be read`, "name a readable file with --token-file", { cause });
  }
}

/** Reads the files that --ca, --cert and --key (or their environment variables) name. */
export function readCertificates(options: ServerOptions, env: NodeJS.ProcessEnv): Certificates {
  const ca = options.ca ?? (env.TOOLGATE_CA || undefined);
  const cert = options.cert ?? (env.TOOLGATE_CERT || undefined);
  const key = options.key ?? (env.TOOLGATE_KEY || undefined);
  if ((cert === undefined) !== (key === undefined)) {
    throw new UsageError("a client certificate is a certificate and its key", "give both --cert and --key");
  }
  return {
    ...(ca !== undefined && { ca: readCertificate("--ca", ca) }),
    ...(cert !== undefined && { cert: readCertificate("--cert", cert) }),
    ...(key !== undefined && { key: readCertificate("--key", key) }),
  };
}

function readCertificate(option: string, file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new UsageError(`${file} cannot be read`, `name a readable PEM file with ${option}`, { cause });
  }
}
