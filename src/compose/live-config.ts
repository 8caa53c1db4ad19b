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
  let { tokens, jwt, clientCerts, oidc, groups, policy, shadow, websearch, codesearch, upstreamServers } = first;
  let configured = configuredRules(policy);
  return {
    config: {
      ...first,
      get tokens() {
        return tokens;
      },
      get jwt() {
        return jwt;
      },
      get clientCerts() {
        return clientCerts;
      },
      get oidc() {
        return oidc;
      },
      get groups() {
        return groups;
      },
      get policy() {
        return policy;
      },
      get shadow() {
        return shadow;
      },
      get websearch() {
        return websearch;
      },
      get codesearch() {
        return codesearch;
      },
      get upstreamServers() {
        return upstreamServers;
      },
    },
    rules: {
      get preset() {
        return configured.preset;
      },
      get config() {
        return configured.config;
      },
      get agents() {
        return configured.agents;
      },
      get approvals() {
        return configured.approvals;
      },
      get shadow() {
        return shadow?.rules;
      },
    },
    replace(next) {
      ({ tokens, jwt, clientCerts, oidc, groups, policy, shadow, websearch, codesearch, upstreamServers } = next);
      configured = configuredRules(policy);
    },
  };
}
