import { readFileSync } from "node:fs";
import { connectWith, type ToolgateClient } from "../../client/connect.ts";
import { defaultUrl } from "../../client/find-server.ts";
import { callerTokenFileOf, findToken, isLoopback, type TokenRole } from "../../client/find-token.ts";
import { loginFileOf } from "../../client/stored-logins.ts";
import type { Certificates } from "../../client/verified-socket.ts";
import { UsageError } from "../failure/command-error.ts";
import { type ServerOptions, serverUrl } from "./server-address.ts";

export type { TokenRole } from "../../client/find-token.ts";

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
