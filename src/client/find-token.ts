import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

/** A role that has a generated token. */
export type TokenRole = "caller" | "approver";

/** The data directory of the service on this machine, where it stores its generated tokens. */
export function dataDirectoryOf(env: NodeJS.ProcessEnv): string {
  if (env.TOOLGATE_DATA) return env.TOOLGATE_DATA;
  return join(env.XDG_DATA_HOME || join(homedir(), ".local", "share"), "toolgate");
}

/** The file of a role's generated token. */
export function tokenFileOf(role: TokenRole, env: NodeJS.ProcessEnv): string {
  return join(dataDirectoryOf(env), "tokens", role);
}

/**
 * Finds the token for a role: TOOLGATE_TOKEN, otherwise the one that the service on this machine generated. The latter is
 * only for URLs of this machine; for others it returns undefined.
 */
export function findToken(role: TokenRole, url: string, env: NodeJS.ProcessEnv): string | undefined {
  if (env.TOOLGATE_TOKEN) return env.TOOLGATE_TOKEN;
  if (!isLoopback(url)) return undefined;
  try {
    return readFileSync(tokenFileOf(role, env), "utf8").trim();
  } catch {
    return undefined;
  }
}

/** Checks that a URL names this machine. */
export function isLoopback(url: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(new URL(url).hostname);
}
