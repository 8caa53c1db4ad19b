import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { findLogin } from "./stored-logins.ts";

/** A role whose token can be found on this machine. */
export type TokenRole = "caller" | "approver";

/** The data directory of the service on this machine, where it stores its generated token. */
function dataDirectoryOf(env: NodeJS.ProcessEnv): string {
  if (env.TOOLGATE_DATA) return env.TOOLGATE_DATA;
  return join(env.XDG_DATA_HOME || join(homedir(), ".local", "share"), "toolgate");
}

/** The file of the generated caller token. */
export function callerTokenFileOf(env: NodeJS.ProcessEnv): string {
  return join(dataDirectoryOf(env), "tokens", "caller");
}

/**
 * Finds the token for a role: TOOLGATE_TOKEN, otherwise for an approver that of `toolgate login`, and for a caller the one that
 * the service on this machine generated. The latter is only for URLs of this machine; for others it returns undefined.
 */
export function findToken(role: TokenRole, url: string, env: NodeJS.ProcessEnv): string | undefined {
  if (env.TOOLGATE_TOKEN) return env.TOOLGATE_TOKEN;
  if (role === "approver") return findLogin(url, env)?.token;
  if (!isLoopback(url)) return undefined;
  try {
    return readFileSync(callerTokenFileOf(env), "utf8").trim();
  } catch {
    return undefined;
  }
}

/** Checks that a URL names this machine. */
export function isLoopback(url: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(new URL(url).hostname);
}
