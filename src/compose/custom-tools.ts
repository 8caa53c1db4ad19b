import { dirname, join } from "node:path";
import { type Config, ConfigError } from "../config/config.ts";
import { isWorkspaceFile } from "../config/workspace-rules.ts";
import type { Logger } from "../core/logger.ts";
import { type CustomTools, createCustomTools } from "../tool/files/custom-tools.ts";
import { createModules } from "../tool/files/modules.ts";
import { createTrust } from "../tool/files/trust.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";

/** Loads tool files and plugins. Refuses to start if a plugin of the configuration cannot be loaded and is not optional, since it may guard calls. */
export async function openCustomTools(
  { file, workspaces, plugins, workspacePlugins, trustDirectory }: Config,
  registry: Registry,
  hooks: HookChain,
  log: Logger,
): Promise<CustomTools> {
  const user = dirname(file);
  const isInWorkspace = [...workspaces.values()].some((root) => user === root || user.startsWith(`${root}/`));
  const [first = "/"] = workspaces.values();
  const custom = createCustomTools({
    directories: [
      // Tools must not load from a directory that tools can write to.
      ...(isInWorkspace ? [] : [{ path: user }]),
      ...[...workspaces].map(([name, directory]) => ({
        path: join(directory, ".opencode"),
        workspace: { name, directory },
      })),
    ],
    plugins,
    workspacePlugins: (workspace) => workspacePlugins[workspace] ?? "require",
    pluginInput: { directory: first, worktree: first },
    registry,
    hooks,
    modules: createModules(),
    trust: createTrust(trustDirectory),
    report: ({ path, line, reason }) => {
      const what = isWorkspaceFile(path) ? "a policy file only narrows" : "a tool or plugin file is not loaded";
      log.warn(what, { path, line, reason });
    },
  });
  await custom.refresh();
  registry.addProvider(custom);
  const problem = custom.pluginProblem();
  if (problem === undefined) return custom;
  custom.close();
  throw new ConfigError(`${file}: ${problem}`);
}
