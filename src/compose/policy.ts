import { createHash } from "node:crypto";
import { homedir } from "node:os";
import { PermissionLayer, type RuleMatch } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createTrustedPolicies } from "../bodies/processes/trust.ts";
import type { StoreMembership } from "../call/ports.ts";
import {
  type Config,
  ConfigError,
  checkPolicy,
  createGitFiles,
  createWorkspaceRules,
  ruleLine,
  workspaceRuleLine,
} from "../config/config.ts";
import { canonicalJson, plainJson } from "../core/json.ts";
import type { Logger } from "../core/logger.ts";
import { inputProblem, type TypedTool } from "../policy/condition-schema.ts";
import { type ConfiguredRules, createLayers, type LayersFor } from "../policy/layers.ts";
import type { Layers, Subject } from "../policy/model.ts";
import { createPolicy } from "../policy/policy.ts";
import type { Rule } from "../policy/rules.ts";
import { declaredTools } from "./built-in-tools.ts";

/** The configuration that decides what policy protects and where workspaces are. */
export type PolicyConfig = Pick<Config, "dataDirectory" | "file" | "serviceDirectory" | "workspaces" | "loginFile"> &
  Partial<Pick<Config, "trustDirectory" | "policy" | "shadow">>;

/**
 * Creates the policy and the function that collects the layers of a subject: configured rules and those of its workspace. A
 * reload replaces the members of `rules`; they are read at each use.
 */
export function createPolicyParts(
  config: PolicyConfig,
  rules: ConfiguredRules,
  connectorFiles: () => readonly string[] = () => [],
) {
  const home = homedir();
  const { dataDirectory, file, serviceDirectory, workspaces, loginFile, trustDirectory, shadow } = config;
  const guard = {
    ...{ dataDirectory, configFile: file },
    ...(serviceDirectory !== undefined && { serviceDirectory }),
    ...(shadow && { shadowFile: shadow.file }),
    ...(loginFile !== undefined && { loginFile }),
  };
  const workspaceRules = createWorkspaceRules({
    home,
    ...(trustDirectory !== undefined && { trustedPolicy: createTrustedPolicies(trustDirectory) }),
  });
  const gitFiles = createGitFiles(home);
  const filesOf: Parameters<typeof createLayers>[1] = ({ workspace, directory, agent }) =>
    workspaceRules({ root: workspaces.get(workspace) ?? directory, directory }, agent);
  const build = () => ({
    of: rules.config,
    digest: policyDigestOf(rules),
    layersFor: createLayers(rules, filesOf),
    shadowFor: rules.shadow && createLayers(rules.shadow, filesOf),
  });
  let built = build();
  const current = () => {
    if (built.of !== rules.config) built = build();
    return built;
  };
  return {
    policy: createPolicy({ guard, home, connectorFiles }),
    layersFor(subject: LayersFor): Layers {
      const layers = current().layersFor(subject);
      const { workspace, directory } = subject;
      if (directory === undefined) return layers;
      return { ...layers, gitFiles: gitFiles({ root: workspaces.get(workspace) ?? directory, directory }) };
    },
    /** Returns the layers of the shadow rules, without the files of git; undefined if there are none. */
    shadowFor: (subject: LayersFor): Layers | undefined => current().shadowFor?.(subject),
    policyDigest: () => current().digest,
    placeOf,
  };

  /** Returns where a rule that matched is written, as FILE:LINE; empty for a rule of no file. */
  function placeOf({ layer, source, ruleIndex }: RuleMatch, { workspace, directory, agent }: RuleSubject): string {
    const isOfWorkspace = layer === PermissionLayer.WORKSPACE;
    const line = isOfWorkspace
      ? workspaceRuleLine(workspaces.get(workspace) ?? directory, source, agent, ruleIndex)
      : config.policy && ruleLine(config.policy, layer, source.replace(/^agent /, ""), ruleIndex);
    return line === undefined ? "" : `${isOfWorkspace ? source : file}:${line}`;
  }
}

type RuleSubject = Pick<Subject, "workspace" | "directory" | "agent">;

/** Refuses a policy whose own tests fail, and logs warnings about suspicious rules. */
export async function checkConfiguredPolicy({ policy, file, dataDirectory }: Config, log: Logger): Promise<void> {
  const findings = await checkPolicy(policy, { home: homedir(), dataDirectory, tools: await declaredTools() });
  const lines = findings.map(({ severity, line, message }) => ({ severity, text: `${file}:${line ?? ""} ${message}` }));
  for (const { severity, text } of lines) if (severity === "warning") log.warn(text);
  const errors = lines.filter(({ severity }) => severity === "error");
  if (errors.length === 0) return;
  throw new ConfigError(
    `${errors.map(({ text }) => text).join("\n")}\ncorrect the rules or the tests, and check them with: toolgate check-config ${file}`,
  );
}

/** Creates the function that logs the conditions that do not fit the input of tools that register. Where they allow, such a call asks. */
export function createConditionCheck(rules: ConfiguredRules, log: Logger) {
  const reported = new Set<string>();
  return (tools: readonly TypedTool[]): void => {
    for (const rule of [rules.config, ...rules.agents.values()].flat()) {
      const problem = inputProblem(rule, tools);
      if (problem === undefined || reported.has(problem)) continue;
      reported.add(problem);
      log.warn(`${problem}. What it would allow asks`);
    }
  };
}

/**
 * Compares this replica's policy digest with those of the replicas that share the store. The latest start or reload decides; a replica
 * with another digest is not ready, and takes no calls and no answers.
 */
export async function createPolicyAgreement(
  store: Pick<StoreMembership, "agrees">,
  rules: ConfiguredRules,
  log: Logger,
) {
  let agrees = await store.agrees(policyDigestOf(rules), "start");
  if (!agrees) log.warn(mismatch);
  /** The reload whose rules the store does not have yet: it is away, or does not answer. */
  let pending: object | undefined;
  async function compare(): Promise<void> {
    const [before, reload] = [agrees, pending];
    agrees = await store.agrees(policyDigestOf(rules), reload && "reload");
    if (pending === reload) pending = undefined;
    if (before && !agrees) log.warn(mismatch);
    if (!before && agrees)
      log.info("policy agreed: this replica's rules are those of the others, and it takes calls again");
  }
  async function take(): Promise<void> {
    pending = {};
    await compare().catch((error: unknown) =>
      log.warn("the store does not answer: it gets the reloaded rules when it does", { error }),
    );
  }
  return { agrees: () => agrees, compare, take };
}

const mismatch =
  "policy mismatch: other replicas on this store have started or reloaded with other rules since; this one takes no calls and no answers: give it the same rules and send SIGHUP, or stop it";

/**
 * Digest of the configured rules and the preset: replicas that share a store must agree on it, and an approval is bound to it. Built-in rules
 * are left out, since they differ during a rolling upgrade; so are policy files of workspaces, which replicas read from shared
 * directories.
 */
function policyDigestOf({ preset, config, agents, approvals }: ConfiguredRules): string {
  const all = [
    plain(config),
    ...[...agents].map(([name, own]) => [name, plain(own)]),
    // Without one it is that of a version that knows no preset.
    ...(preset ? [["preset", preset.name, plain(preset.rules)]] : []),
    // A version that knows no approvals refuses their configuration, and has another digest.
    ...(approvals?.rules.length ? [["approvals", plainJson(approvals)]] : []),
  ];
  return createHash("sha256").update(canonicalJson(all)).digest("hex");
}

const plain = (rules: readonly Rule[]) =>
  rules.map(({ permission, pattern, action, when }) => [permission, pattern, action, ...(when ? [when] : [])]);
