/**
 * Settings that a repository cannot override. Git takes any directory with the right files for a repository and runs the
 * programs that its settings name; a command that was approved must not find one that a tool wrote.
 */
const settings: readonly (readonly [name: string, value: string])[] = [
  ["safe.bareRepository", "explicit"],
  ["core.fsmonitor", "false"],
  ["protocol.ext.allow", "never"],
  ["fetch.recurseSubmodules", "false"],
  ["submodule.recurse", "false"],
];

/** Returns the variables that harden git, after settings that the environment has already. */
export function gitEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const given = Number(env.GIT_CONFIG_COUNT ?? 0);
  const first = Number.isInteger(given) && given >= 0 ? given : 0;
  const entries = settings.flatMap(([name, value], i) => [
    [`GIT_CONFIG_KEY_${first + i}`, name],
    [`GIT_CONFIG_VALUE_${first + i}`, value],
  ]);
  return { ...Object.fromEntries(entries), GIT_CONFIG_COUNT: String(first + settings.length) };
}
