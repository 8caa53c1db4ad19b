import { isAbsolute, normalize } from "node:path";
import { locateProgram } from "../core/locate-program.ts";
import { builtInAgents } from "../policy/agents.ts";
import { ConfigError } from "./errors.ts";
import type { Settings } from "./file.ts";
import { checkOutside } from "./paths.ts";
import type { SandboxSettings } from "./sandbox.ts";

/** A program that runs agents over the Agent Client Protocol. */
export interface AgentRunnerSettings {
  readonly name: string;
  /** Path of the program, or its name in `env.PATH`. */
  readonly command: string;
  readonly args: readonly string[];
  /** The whole environment of the program: PATH, HOME and the named variables. */
  readonly env: Readonly<Record<string, string>>;
  /** Variables that are named and not set. */
  readonly unset: readonly string[];
  /** The agents that it runs. */
  readonly agents: readonly string[];
  /** Directory in which it works, below the directory of its session. */
  readonly cwd: string;
}

/** Variables that every program needs and that hold no secret. */
const alwaysPassed = ["PATH", "HOME"];

/** Reads the runners. Refuses agents that are not configured, and programs and directories that a tool could choose. */
export function readAgentRunners(
  settings: Settings,
  env: Readonly<Record<string, string | undefined>>,
  workspaces: ReadonlyMap<string, string>,
): AgentRunnerSettings[] {
  const known = new Set([...builtInAgents.keys(), ...Object.keys(settings.agent ?? {})]);
  return Object.entries(settings.agent_runner ?? {}).map(([name, table]) => {
    const { command, args = [], env: named = [], agents, cwd = "." } = table;
    const what = `agent_runner "${name}"`;
    const unknown = agents.find((agent) => !known.has(agent));
    if (unknown !== undefined)
      throw new ConfigError(
        `${what}: the agent "${unknown}" is not configured; add [agent.${unknown}], or name one of: ${[...known].join(", ")}`,
      );
    if (isAbsolute(cwd) || normalize(cwd).startsWith(".."))
      throw new ConfigError(
        `${what}: cwd ${JSON.stringify(cwd)} leads out of the workspace; name a directory below that of the session`,
      );
    const program = locateProgram(command, env.PATH);
    if (program !== undefined) checkOutside(program, `the program of ${what}`, workspaces);
    const variables = [...new Set([...alwaysPassed, ...named])];
    return {
      ...{ name, command, args, agents, cwd },
      env: Object.fromEntries(variables.flatMap((key) => (env[key] === undefined ? [] : [[key, env[key]]]))),
      unset: named.filter((key) => env[key] === undefined),
    };
  });
}

/** Finds what keeps runners from working: programs and variables that are missing, and a sandbox without network. */
export function agentRunnerWarnings(
  agentRunners: readonly AgentRunnerSettings[],
  sandbox: SandboxSettings,
): { name: string; message: string }[] {
  return agentRunners.flatMap(({ name, command, env, unset, agents }) => {
    const walled = agents.filter((agent) => (sandbox.agents.get(agent) ?? sandbox).network === "none");
    const problems = [
      ...(locateProgram(command, env.PATH) === undefined
        ? [`the program ${command} is not found, so its tasks fail; install it, or name its path in command`]
        : []),
      ...unset.map(
        (key) => `the variable ${key} is not set, so the program starts without it; set it, or take it out of env`,
      ),
      ...walled.map(
        (agent) =>
          `the sandbox gives agent ${agent} no network, so the program reaches neither its model nor Toolgate; set network = "proxy" under [sandbox.agent.${agent}]`,
      ),
    ];
    return problems.map((problem) => ({ name, message: `agent_runner "${name}": ${problem}` }));
  });
}
