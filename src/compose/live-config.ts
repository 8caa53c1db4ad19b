import { type Config, configuredRules } from "../config/config.ts";
import type { ConfiguredRules } from "../policy/layers.ts";

/** Creates a view of a configuration of which a reload replaces tokens and policy; all else stays until the next start. */
export function liveConfig(first: Config): {
  config: Config;
  rules: ConfiguredRules;
  replace(next: Pick<Config, "tokens" | "policy">): void;
} {
  let { tokens, policy } = first;
  let configured = configuredRules(policy);
  return {
    config: {
      ...first,
      get tokens() {
        return tokens;
      },
      get policy() {
        return policy;
      },
    },
    rules: {
      get config() {
        return configured.config;
      },
      get agents() {
        return configured.agents;
      },
    },
    replace(next) {
      ({ tokens, policy } = next);
      configured = configuredRules(policy);
    },
  };
}
