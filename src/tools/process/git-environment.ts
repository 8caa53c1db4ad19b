import { gitSettings } from "../../sandbox/git-settings.ts";

/** Returns the variables that harden git, after settings that the environment has already. */
export function gitEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const given = Number(env.GIT_CONFIG_COUNT ?? 0);
  const first = Number.isInteger(given) && given >= 0 ? given : 0;
  const entries = gitSettings.flatMap(([name, value], i) => [
    [`GIT_CONFIG_KEY_${first + i}`, name],
    [`GIT_CONFIG_VALUE_${first + i}`, value],
  ]);
  return { ...Object.fromEntries(entries), GIT_CONFIG_COUNT: String(first + gitSettings.length) };
}
