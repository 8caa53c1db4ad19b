import { gitSettings } from "../../sandbox/git-settings.ts";

/** Returns the environment of a command. Drops relative parts of PATH, which would search whatever directory a command runs in. */
export function environmentOf(added: Readonly<Record<string, string>>): Record<string, string> & { PATH: string } {
  const env = { ...inherited(), ...added };
  return {
    ...env,
    ...gitEnvironment(env),
    PATH: env.PATH.split(":")
      .filter((directory) => directory.startsWith("/"))
      .join(":"),
  };
}

/** Returns the search path of commands to which nobody adds variables. */
export const commandSearchPath = () => environmentOf({}).PATH;

/** Selects the variables of the service's environment that commands inherit: none that could hold a secret. */
function inherited(): Record<string, string> & { PATH: string } {
  const names = ["HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "PATH"];
  const selected = Object.entries(process.env).flatMap(([name, value]) =>
    value !== undefined && (names.includes(name) || name.startsWith("LC_")) ? [[name, value] as const] : [],
  );
  return {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ...Object.fromEntries(selected),
    TERM: "dumb",
  };
}

/** Returns the variables that harden git, after settings that the environment has already. */
function gitEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const given = Number(env.GIT_CONFIG_COUNT ?? 0);
  const first = Number.isInteger(given) && given >= 0 ? given : 0;
  const entries = gitSettings.flatMap(([name, value], i) => [
    [`GIT_CONFIG_KEY_${first + i}`, name],
    [`GIT_CONFIG_VALUE_${first + i}`, value],
  ]);
  return { ...Object.fromEntries(entries), GIT_CONFIG_COUNT: String(first + gitSettings.length) };
}
