import { execFileSync } from "node:child_process";
import { homedir, userInfo } from "node:os";
import type { CliProcess } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";

/** The user of the operating system as which an agent runs. */
export interface AgentUser {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  readonly home: string;
  /** The variables that name the directories of this user's configuration. */
  readonly env: NodeJS.ProcessEnv;
}

/** Finds the agent's user: the named one, which only root may choose, or the present one. */
export function findAgentUser(name: string | undefined, { env }: Pick<CliProcess, "env">): AgentUser {
  const { username, uid, gid } = userInfo();
  const sudoUser = uid === 0 ? env.SUDO_USER : undefined;
  if (name === undefined && sudoUser !== undefined && sudoUser !== username)
    throw new UsageError(
      "root would connect the agent of root",
      `name the user as which the agent runs: --user ${sudoUser}, or --user root`,
    );
  if (name === undefined || name === username) return { name: username, uid, gid, home: env.HOME || homedir(), env };
  if (uid !== 0)
    throw new UsageError(`only root can connect the agent of user ${name}`, "run it with sudo, or as that user");
  const [, , foundUid, foundGid, , home = ""] = passwdEntry(name);
  const { PATH, LANG } = env;
  return { name, uid: Number(foundUid), gid: Number(foundGid), home, env: { HOME: home, USER: name, PATH, LANG } };
}

function passwdEntry(name: string): string[] {
  try {
    return execFileSync("getent", ["passwd", name], { encoding: "utf8" }).trim().split(":");
  } catch (cause) {
    throw new UsageError(`there is no user ${name} on this machine`, "name one of `getent passwd`", { cause });
  }
}

/** Returns the environment of a program of the agent: never a token of ours, with which it could approve. */
export function agentEnvironment({ env, home }: AgentUser): Record<string, string> {
  const own = ["PATH", "LANG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"];
  const kept = own.flatMap((name) => {
    const value = env[name];
    return value === undefined ? [] : [[name, value] as const];
  });
  return { ...Object.fromEntries(kept), HOME: home };
}

/** Runs synchronous work on files with the rights of the agent's user, so that root follows no link that the user could not. */
export function asAgentUser<T>({ uid, gid }: AgentUser, work: () => T): T {
  const { geteuid, getegid, getgroups, setgroups, setegid, seteuid } = process;
  // Work inside such work has these rights already.
  if (geteuid?.() !== 0 || uid === 0 || !getegid || !getgroups || !setgroups || !setegid || !seteuid) return work();
  const before = { gid: getegid(), groups: getgroups() };
  setgroups([gid]);
  setegid(gid);
  seteuid(uid);
  try {
    return work();
  } finally {
    seteuid(0);
    setegid(before.gid);
    setgroups(before.groups);
  }
}
