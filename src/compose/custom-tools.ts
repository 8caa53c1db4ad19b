import { dirname } from "node:path";
import { type CustomTools, createCustomTools } from "../bodies/processes/custom-tools.ts";
import { createTrust } from "../bodies/processes/trust.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { isWorkspaceFile } from "../config/workspace-rules.ts";
import type { UpstreamSources } from "../sources/mcp/upstream-sources.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import { createToolProcessStarter, type ToolProcessParts } from "./tool-processes.ts";

/** Offers tool files and plugins. Refuses to start if a plugin of the configuration cannot be loaded and is not optional, since it may guard calls. */
export async function openCustomTools(
  config: Config,
  { registry, hooks, ...parts }: ToolProcessParts & { registry: Registry; hooks: HookChain },
): Promise<CustomTools> {
  const { file, workspaces, plugins, workspacePlugins, trustDirectory } = config;
  const { log } = parts;
  const user = dirname(file);
  const isInWorkspace = [...workspaces.values()].some((root) => user === root || user.startsWith(`${root}/`));
  const custom = createCustomTools(
    {
      ...{ workspaces, plugins },
      // Tools must not load from a directory that tools can write to.
      userDirectory: isInWorkspace ? undefined : user,
      workspacePlugins: (workspace) => workspacePlugins[workspace] ?? "require",
    },
    {
      ...{ registry, hooks },
      starter: createToolProcessStarter(config, parts),
      trust: createTrust(trustDirectory),
      report: ({ path, line, reason }) => {
        const what = isWorkspaceFile(path) ? "a policy file only narrows" : "a tool or plugin file is not loaded";
        log.warn(what, { path, line, reason });
      },
    },
  );
  registry.addProvider(custom);
  const [first] = workspaces.keys();
  const problem = first === undefined ? undefined : await custom.checkPlugins(first);
  if (problem === undefined) return custom;
  await custom.close();
  throw new ConfigError(`${file}: ${problem}`);
}

/** Lists the processes of tool files and plugins behind the MCP servers. */
export function withToolProcesses(
  { accept, list }: Pick<UpstreamSources, "accept" | "list">,
  custom: Pick<CustomTools, "list">,
): Pick<UpstreamSources, "accept" | "list"> {
  return { accept, list: async () => [...(await list()), ...(await custom.list())] };
}
