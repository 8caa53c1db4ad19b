import { existsSync } from "node:fs";
import type { TypedTool } from "../policy/condition-schema.ts";
import { type Config, configFile, defaultData, type Environment, loadConfigForCheck } from "./config.ts";
import { languageServerWarnings } from "./language-servers.ts";
import { checkPolicy, type Finding, readPolicy } from "./policy.ts";
import { agentRunnerWarnings, toolProcessWarnings, upstreamWarnings } from "./programs.ts";
import { notOffered, searchWarnings } from "./search.ts";
import { readSettings } from "./sources.ts";
import { tokenWarnings } from "./tokens.ts";
import { ConfigError } from "./toml.ts";
import { isWorkspaceFile, readWorkspaceSettings } from "./workspace-rules.ts";

/** Checks a configuration file: refuses what a start with it refuses, and finds problems of its rules. Creates and starts nothing. */
export async function checkConfig(
  named: string | undefined,
  environment: Environment,
  tools: readonly TypedTool[],
): Promise<{ file: string; rules: number; tests: number; findings: Finding[]; notes: string[] }> {
  const explicit = named ?? environment.env.TOOLGATE_CONFIG;
  const file = configFile(explicit, environment);
  const { home } = environment;
  const service = isWorkspaceFile(file) ? undefined : readSettings(file, home);
  const read = service ?? (isWorkspaceFile(file) ? readWorkspaceSettings(file) : undefined);
  if (!read && explicit === undefined)
    return { file, rules: 0, tests: 0, findings: [], notes: ["the file does not exist: a service starts without it"] };
  if (!read) throw new ConfigError(`the configuration file ${file} does not exist; create it, or name another one`);
  const policy = readPolicy(read.settings, read.lineOf, home);
  const warnings = service === undefined ? [] : checkService(file, environment, service);
  const dataDirectory = service?.settings.data ?? defaultData(environment);
  const lists = [policy.config, ...policy.agents.values()];
  const findings = await checkPolicy(policy, { home, dataDirectory, tools });
  return {
    file,
    rules: lists.reduce((sum, { rules }) => sum + rules.length, 0),
    tests: policy.tests.length,
    findings: [...warnings, ...findings].toSorted((one, other) => (one.line ?? 0) - (other.line ?? 0)),
    notes: service === undefined ? [] : notOffered(service.settings),
  };
}

/** Refuses plugins that do not exist, except optional ones. */
export function checkPluginFiles({ plugins, file }: Pick<Config, "plugins" | "file">): void {
  const missing = plugins.find(({ path, optional }) => !optional && !existsSync(path))?.path;
  if (missing === undefined) return;
  throw new ConfigError(`the plugin ${missing} does not exist; create it, or take it out of "plugin" in ${file}`);
}

/** Reads everything that a start reads, and returns warnings. */
function checkService(
  file: string,
  environment: Environment,
  { settings, lineOf }: NonNullable<ReturnType<typeof readSettings>>,
): Finding[] {
  const config = loadConfigForCheck({ config: file }, environment);
  checkPluginFiles(config);
  const { tokens, policy } = config;
  const at = (path: readonly PropertyKey[], message: string): Finding => ({
    ...{ severity: "warning", line: lineOf(path), message },
  });
  return [
    ...(policy.approvals?.warnings ?? []),
    ...tokenWarnings(tokens).map(({ id, message }) =>
      at(["token", tokens.findIndex((token) => token.id === id)], message),
    ),
    ...searchWarnings(config).map(({ tool, message }) => at([tool], message)),
    ...agentRunnerWarnings(config.agentRunners, config.sandbox).map(({ name, message }) =>
      at(["agent_runner", name], message),
    ),
    ...upstreamWarnings(config.upstreamServers).map(({ name, message }) => at(["mcp", name], message)),
    ...toolProcessWarnings(config.toolProcesses).map((message) => at(["tools", "env"], message)),
    ...languageServerWarnings(settings.lsp, environment.env).map(({ name, message }) => at(["lsp", name], message)),
  ];
}
