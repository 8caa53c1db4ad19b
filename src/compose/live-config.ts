import { type Config, configuredRules } from "../config/config.ts";
import type { ConfiguredRules } from "../policy/layers.ts";

/** The settings that a reload puts in force. */
export const reloadedSettings = [
  "tokens",
  "jwt",
  "clientCerts",
  "oidc",
  "groups",
  "policy",
  "shadow",
  "websearch",
  "codesearch",
  "upstreamServers",
] as const;

type ReloadedSetting = (typeof reloadedSettings)[number];

/** Creates a view of a configuration of which a reload replaces tokens, persons, policy, search providers and MCP servers; all else stays until the next start. */
export function liveConfig(first: Config): {
  config: Config;
  rules: ConfiguredRules;
  replace(next: Pick<Config, ReloadedSetting>): void;
} {
  let settings: Pick<Config, ReloadedSetting> = first;
  let rules = rulesOf(first);
  return {
    config: withGetters({ ...first }, reloadedSettings, () => settings),
    rules: withGetters({ ...rules }, ["preset", "config", "agents", "approvals", "shadow"], () => rules),
    replace(next) {
      settings = next;
      rules = rulesOf(next);
    },
  };
}

const rulesOf = ({ policy, shadow }: Pick<Config, "policy" | "shadow">): ConfiguredRules => ({
  ...configuredRules(policy),
  shadow: shadow?.rules,
});

/** Replaces members of an object by those that another one has at each use. */
function withGetters<T extends object, Name extends keyof T>(
  object: T,
  names: readonly Name[],
  now: () => Pick<T, Name>,
): T {
  const members = names.map((name) => [name, { enumerable: true, get: () => now()[name] }]);
  return Object.defineProperties(object, Object.fromEntries(members));
}
