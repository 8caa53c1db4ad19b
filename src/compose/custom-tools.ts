import { dirname, join } from "node:path";
import { type Config, ConfigError } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { type CustomTools, createCustomTools } from "../tool/files/custom-tools.ts";
import { createModules } from "../tool/files/modules.ts";
import { createTrust } from "../tool/files/trust.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";

/** Loads tool files and plugins. Refuses to start if a plugin cannot be loaded, since plugins may guard calls. */
export async function openCustomTools(
  { file, workspaces, plugins, trustDirectory }: Config,
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
    pluginInput: { directory: first, worktree: first },
    registry,
    hooks,
    modules: createModules(),
    trust: createTrust(trustDirectory),
    report: ({ path, line, reason }) => log.warn("a tool or plugin file is not loaded", { path, line, reason }),
  });
  await custom.refresh();
  const [problem] = custom.pluginProblems();
  if (!problem) return custom;
  custom.close();
  throw new ConfigError(
    `the plugin ${problem.path}, line ${problem.line}, cannot be loaded: ${problem.reason}; correct it, or take it out of "plugin" in ${file}`,
  );
}
