import { readFile } from "node:fs/promises";
import type { HookChain } from "../hooks.ts";
import { byName, type Registry } from "../registry.ts";
import { createFileStamp } from "./file-stamp.ts";
import { type Modules, type Problem, sha256 } from "./modules.ts";
import { type PluginInput, readPlugin } from "./plugins.ts";
import { type ToolSource, versionDigest } from "./tool-source.ts";

/** A plugin that the configuration names. */
export interface ConfiguredPlugin {
  readonly path: string;
  /** Calls run without it if it cannot be loaded. */
  readonly optional: boolean;
}

/** The parts that load a plugin and register its tools and hooks. */
export interface PluginParts {
  registry: Registry;
  hooks: HookChain;
  modules: Modules;
  pluginInput: PluginInput;
  report(problem: Problem): void;
}

/** Creates the source of a plugin file; nothing is loaded before its first refresh. */
export function pluginSource({ path, optional }: ConfiguredPlugin, parts: PluginParts): ToolSource {
  const stamp = createFileStamp();
  let loaded: LoadedPlugin | undefined;
  const takeStamp = (readSince: number) => stamp.take([path, ...parts.modules.importsOf([path])], readSince);
  const source: ToolSource = {
    path,
    workspace: undefined,
    problems: [],
    guardProblem() {
      const [problem] = source.problems;
      return optional || !problem ? undefined : denial(path, problem);
    },
    isCurrent: stamp.isCurrent,
    async refresh() {
      const readSince = Date.now();
      takeStamp(readSince);
      if (loaded && (await isUnchanged(loaded.files))) {
        source.problems = [];
        return;
      }
      try {
        loaded = await loadPlugin(path, parts, loaded);
        source.problems = [];
      } finally {
        // Its imports are known only now.
        takeStamp(readSince);
      }
    },
  };
  return source;
}

/** A loaded version, with the SHA-256 of each of its files. */
interface LoadedPlugin {
  files: ReadonlyMap<string, string>;
  close(): void;
}

async function isUnchanged(files: ReadonlyMap<string, string>): Promise<boolean> {
  const same = [...files].map(async ([file, hash]) => hash === (await readFile(file).then(sha256, () => undefined)));
  return (await Promise.all(same)).every(Boolean);
}

function denial(path: string, { line, reason }: Problem): string {
  return `the plugin ${path}${line > 0 ? `, line ${line},` : ""} is not loaded and may guard calls: ${reason}. Correct it, take it out of plugin in toolgate.toml, or write { path = ${JSON.stringify(path)}, optional = true } there`;
}

/** Loads the present version in place of the one before; reports hooks of unknown names. */
async function loadPlugin(
  path: string,
  { registry, hooks, modules, pluginInput, report }: PluginParts,
  before: LoadedPlugin | undefined,
): Promise<LoadedPlugin> {
  const paths = [path, ...modules.importsOf([path])];
  const version = versionDigest(...(await Promise.all(paths.map((file) => readFile(file)))));
  const { exports, digest, files } = await modules.load(path, version, version);
  const plugin = await readPlugin(path, exports, digest, pluginInput);
  const closers = [
    registry.register(byName(plugin.tools)),
    ...plugin.hooks.map((each) => hooks.add(plugin.name, each)),
  ];
  before?.close();
  for (const name of plugin.unknown) {
    report({ path, line: 0, reason: `the hook ${name} is unknown to Toolgate: it is never run` });
  }
  return { files, close: () => closers.forEach((close) => void close()) };
}
