import type { AskingTool } from "../policy/known-permissions.ts";
import { checkPolicy, type Finding } from "./check-policy.ts";
import { configFile, defaultData, type Environment } from "./config.ts";
import { ConfigError } from "./errors.ts";
import { readSettings } from "./file.ts";
import { readPolicy } from "./policy.ts";
import { isWorkspaceFile, readWorkspaceSettings } from "./workspace-rules.ts";

/** Checks the rules of a configuration file, but not its directories, addresses and tokens. Creates and starts nothing. */
export async function checkConfig(
  named: string | undefined,
  environment: Environment,
  tools: readonly AskingTool[],
): Promise<{ file: string; rules: number; tests: number; findings: Finding[] }> {
  const file = configFile(named ?? environment.env.TOOLGATE_CONFIG, environment);
  const read = isWorkspaceFile(file) ? readWorkspaceSettings(file) : readSettings(file, environment.home);
  if (!read) throw new ConfigError(`the configuration file ${file} does not exist; create it, or name another one`);
  const { home } = environment;
  const policy = readPolicy(read.settings, read.lineOf, home);
  const dataDirectory = read.settings.data ?? defaultData(environment);
  const lists = [policy.config, ...policy.agents.values()];
  return {
    file,
    rules: lists.reduce((sum, { rules }) => sum + rules.length, 0),
    tests: policy.tests.length,
    findings: await checkPolicy(policy, { home, dataDirectory, tools }),
  };
}
