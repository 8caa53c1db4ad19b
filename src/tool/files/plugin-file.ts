import { readFile, stat } from "node:fs/promises";
import type { HookChain } from "../hooks.ts";
import { byName, type Registry } from "../registry.ts";
import type { Modules, Problem } from "./modules.ts";
import { type PluginInput, readPlugin } from "./plugins.ts";
import { type LoadedFile, type ToolSource, versionDigest } from "./tool-source.ts";

/** The parts that load a plugin and register its tools and hooks. */
export interface PluginParts {
  registry: Registry;
  hooks: HookChain;
  modules: Modules;
  pluginInput: PluginInput;
  report(problem: Problem): void;
}

/** Creates the source of a plugin file; nothing is loaded before its first refresh. */
export function pluginSource(path: string, parts: PluginParts): ToolSource {
  let stamp: string | undefined;
  let loaded: LoadedFile | undefined;
  const source: ToolSource = {
    path,
    workspace: undefined,
    isPlugin: true,
    problems: [],
    async refresh() {
      const { size, mtimeNs } = await stat(path, { bigint: true });
      const now = `${size} ${mtimeNs}`;
      if (now === stamp) return;
      stamp = now;
      loaded = await loadPlugin(path, parts, loaded);
      source.problems = [];
    },
  };
  return source;
}

/** Loads the present version in place of the one before; reports hooks of unknown names. */
async function loadPlugin(
  path: string,
  { registry, hooks, modules, pluginInput, report }: PluginParts,
  before: LoadedFile | undefined,
): Promise<LoadedFile> {
  const version = versionDigest(await readFile(path));
  const { exports, digest } = await modules.load(path, version, version);
  const plugin = await readPlugin(path, exports, digest, pluginInput);
  const closers = [
    registry.register(byName(plugin.tools)),
    ...plugin.hooks.map((each) => hooks.add(plugin.name, each)),
  ];
  before?.close();
  for (const name of plugin.unknown) {
    report({ path, line: 0, reason: `the hook ${name} is unknown to Toolgate: it is never run` });
  }
  return { version, close: () => closers.forEach((close) => void close()) };
}
