import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";

/** A sign-in of this user's terminals at a server. */
export interface StoredLogin {
  /** Scheme, host and port of the server. */
  readonly server: string;
  /** Identifies the store in which the credential is valid. */
  readonly storeId: string;
  /** The principal. */
  readonly id: string;
  readonly token: string;
  /** Ms since the epoch; 0: it does not expire. */
  readonly expires: number;
}

/** Returns the file in which `toolgate login` stores sign-ins. */
export function loginFileOf(env: NodeJS.ProcessEnv): string {
  const configHome = env.XDG_CONFIG_HOME || join(env.HOME || homedir(), ".config");
  return join(configHome, "toolgate", "credentials.json");
}

/** Returns the last sign-in at a server; undefined if there is none, or if it has expired. */
export function findLogin(url: string, env: NodeJS.ProcessEnv): StoredLogin | undefined {
  return findLogins(url, env).at(-1);
}

/** Returns the sign-ins at a server that have not expired: one for each store that was served there. */
export function findLogins(url: string, env: NodeJS.ProcessEnv): readonly StoredLogin[] {
  const { origin } = new URL(url);
  return readLogins(env).filter(({ server, expires }) => server === origin && (expires === 0 || expires > Date.now()));
}

/** Stores a sign-in; it replaces that of the same server and store. */
export function saveLogin(url: string, login: Omit<StoredLogin, "server">, env: NodeJS.ProcessEnv): void {
  const server = new URL(url).origin;
  const others = readLogins(env).filter((each) => each.server !== server || each.storeId !== login.storeId);
  writeLogins([...others, { server, ...login }], env);
}

/** Removes a sign-in. */
export function removeLogin({ token }: StoredLogin, env: NodeJS.ProcessEnv): void {
  writeLogins(
    readLogins(env).filter((each) => each.token !== token),
    env,
  );
}

function readLogins(env: NodeJS.ProcessEnv): readonly StoredLogin[] {
  const file = loginFileOf(env);
  try {
    const text = readFileSync(file, "utf8").trim();
    const logins: unknown = text === "" ? [] : JSON.parse(text).logins;
    if (Array.isArray(logins)) return logins.filter(isLogin);
  } catch (error) {
    if (!(error instanceof SyntaxError) && error instanceof Error && "code" in error) return [];
  }
  throw new Error(`${file} is not a list of sign-ins; remove it, then sign in again with \`toolgate login\``);
}

function isLogin(value: Partial<StoredLogin> | null): value is StoredLogin {
  return typeof value?.server === "string" && typeof value.token === "string" && typeof value.expires === "number";
}

/** Replaces the file, which only this user may read. */
function writeLogins(logins: readonly StoredLogin[], env: NodeJS.ProcessEnv): void {
  const file = loginFileOf(env);
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  const next = `${file}.${process.pid}.new`;
  writeFileSync(next, `${JSON.stringify({ logins }, null, 2)}\n`, { mode: 0o600, flush: true });
  renameSync(next, file);
}
