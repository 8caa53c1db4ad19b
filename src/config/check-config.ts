import { existsSync } from "node:fs";
import type { AskingTool } from "../policy/known-permissions.ts";
import { agentRunnerWarnings } from "./agent-runners.ts";
import { checkPolicy, type Finding } from "./check-policy.ts";
import { type Config, configFile, defaultData, type Environment, loadConfigForCheck } from "./config.ts";
import { ConfigError } from "./errors.ts";
import { readSettings } from "./file.ts";
import { languageServerWarnings } from "./language-servers.ts";
import { readPolicy } from "./policy.ts";
import { notOffered, searchWarnings } from "./search.ts";
import { tokenWarnings } from "./tokens.ts";
import { toolProcessWarnings } from "./tool-processes.ts";
import { upstreamWarnings } from "./upstream-servers.ts";
import { isWorkspaceFile, readWorkspaceSettings } from "./workspace-rules.ts";

/** Checks a configuration file: refuses what a start with it refuses, and finds problems of its rules. Creates and starts nothing. */
export async function checkConfig(
  named: string | undefined,
  environment: Environment,
  tools: readonly AskingTool[],
): Promise<{ file: string; rules: number; tests: number; findings: Finding[]; notes: string[] }> {
  const file = configFile(named ?? environment.env.TOOLGATE_CONFIG, environment);
  const read = isWorkspaceFile(file) ? readWorkspaceSettings(file) : readSettings(file, environment.home);
  if (!read) throw new ConfigError(`the configuration file ${file} does not exist; create it, or name another one`);
  const { home } = environment;
  const policy = readPolicy(read.settings, read.lineOf, home);
  const warnings = isWorkspaceFile(file) ? [] : checkService(file, environment, read.lineOf);
  const dataDirectory = read.settings.data ?? defaultData(environment);
  const lists = [policy.config, ...policy.agents.values()];
  const findings = await checkPolicy(policy, { home, dataDirectory, tools });
  return {
    file,
    rules: lists.reduce((sum, { rules }) => sum + rules.length, 0),
    tests: policy.tests.length,
    findings: [...warnings, ...findings].toSorted((one, other) => (one.line ?? 0) - (other.line ?? 0)),
    notes: isWorkspaceFile(file) ? [] : notOffered(read.settings),
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
  lineOf: (path: readonly PropertyKey[]) => number | undefined,
): Finding[] {
  const config = loadConfigForCheck({ config: file }, environment);
  checkPluginFiles(config);
  const { tokens } = config;
  const ofTokens = tokenWarnings(tokens).map(({ id, message }) => {
    const index = tokens.findIndex((token) => token.id === id);
    return { line: lineOf(["token", index]), message };
  });
  const ofSearch = searchWarnings(config).map(({ tool, message }) => ({ line: lineOf([tool]), message }));
  const ofRunners = agentRunnerWarnings(config.agentRunners, config.sandbox).map(({ name, message }) => ({
    line: lineOf(["agent_runner", name]),
    message,
  }));
  const ofServers = upstreamWarnings(config.upstreamServers).map(({ name, message }) => ({
    line: lineOf(["mcp", name]),
    message,
  }));
  const ofTools = toolProcessWarnings(config.toolProcesses).map((message) => ({
    line: lineOf(["tools", "env"]),
    message,
  }));
  const ofLanguages = languageServerWarnings(readSettings(file, environment.home)?.settings.lsp, environment.env).map(
    ({ name, message }) => ({
      line: lineOf(["lsp", name]),
      message,
    }),
  );
  return [...ofTokens, ...ofSearch, ...ofRunners, ...ofServers, ...ofTools, ...ofLanguages].map((warning) => ({
    severity: "warning",
    ...warning,
  }));
}
