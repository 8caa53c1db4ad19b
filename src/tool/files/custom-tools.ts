import { createHash } from "node:crypto";
import { readFile, realpath, stat } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import type { HookChain } from "../hooks.ts";
import type { Registry } from "../registry.ts";
import type { Tool } from "../tool.ts";
import { toolOf } from "./foreign.ts";
import { loadProblem, type Modules, type Problem } from "./modules.ts";
import { type PluginInput, readPlugin } from "./plugins.ts";
import { readSources, type Source, type Sources, stampOf } from "./sources.ts";
import type { Trust } from "./trust.ts";

/** A folder whose `tool` and `tools` hold files of tools. */
export interface ToolDirectory {
  folder: string;
  /** The workspace root that they belong to: they serve there alone, and only as far as their code is trusted. */
  workspace?: { name: string; directory: string };
}

/** Tools and plugins that are no part of the service, kept as their files are. */
export interface CustomTools {
  /** Loads what has changed since the last time. It throws for nothing that is wrong with a file. */
  refresh(): Promise<void>;
  /** What could not be loaded, of what serves in a workspace root. */
  problems(workspace: string): Problem[];
  /** What could not be loaded of plugins: without them calls would run unguarded. */
  pluginProblems(): Problem[];
  close(): void;
}

/** Makes them; nothing is loaded before the first `refresh`. Each problem is reported when it comes up. */
export function createCustomTools({
  places,
  plugins,
  pluginInput,
  registry,
  hooks,
  modules,
  trust,
  report,
}: {
  places: readonly ToolDirectory[];
  /** Files of plugins. */
  plugins: readonly string[];
  pluginInput: PluginInput;
  registry: Registry;
  hooks: HookChain;
  modules: Modules;
  trust: Trust;
  report(problem: Problem): void;
}): CustomTools {
  const watched = [...places.map(watchPlace), ...plugins.map(watchPlugin)];
  let last: Promise<void> = Promise.resolve();

  async function refreshAll(): Promise<void> {
    for (const one of watched) {
      const before = new Set(one.problems.map(textOf));
      await one.refresh().catch(async (error: unknown) => {
        one.problems = [await loadProblem(one.path, error)];
      });
      for (const problem of one.problems) if (!before.has(textOf(problem))) report(problem);
    }
  }

  function watchPlace({ folder, workspace }: ToolDirectory): Watched {
    const loaded = new Map<string, Loaded>();
    // Beside a configuration file lies what is no code of tools; in .opencode all code may be imported by them.
    const within = workspace ? [folder] : ["tool", "tools"].map((name) => join(folder, name));
    let seen: string | undefined;
    const self: Watched = {
      path: folder,
      workspace: workspace?.name,
      problems: [],
      async refresh() {
        const trusted = workspace && (await trust.get(workspace.directory));
        const stamp = `${trusted}\n${await stampOf(within)}`;
        if (stamp === seen) return;
        const sources = await readSources(folder, within);
        const untrusted = workspace && distrust(workspace.directory, sources, trusted);
        for (const [path, { close }] of loaded) {
          const isThere = sources.entries.some((entry) => entry.path === path);
          if (isThere && (!workspace || trusted !== undefined)) continue;
          close();
          loaded.delete(path);
        }
        if (workspace && !untrusted) {
          // Between looking and loading, and when a tool imports something later, the files may be others.
          modules.expect(await byRealPath(folder, sources.files));
        }
        self.problems = untrusted ? [{ path: folder, line: 0, reason: untrusted }] : [];
        if (!untrusted) await load(sources);
        seen = stamp;
      },
    };

    async function load({ entries, shared }: Sources): Promise<void> {
      for (const { path, sha256 } of entries) {
        const version = digest(sha256, shared);
        const before = loaded.get(path);
        if (before?.version === version) continue;
        const file = join(folder, path);
        try {
          const tools = await toolsOf(file, await modules.load(file, version, shared.slice(0, 32)), version);
          const close = registry.register(tools, workspace?.name);
          before?.close();
          loaded.set(path, { version, close });
        } catch (error) {
          const problem = await loadProblem(file, error);
          const reason = before ? `${problem.reason} (what was there before still serves)` : problem.reason;
          self.problems.push({ ...problem, reason });
        }
      }
    }
    return self;
  }

  function watchPlugin(path: string): Watched {
    let seen: string | undefined;
    let before: Loaded | undefined;
    const self: Watched = {
      path,
      isPlugin: true,
      workspace: undefined,
      problems: [],
      async refresh() {
        const { size, mtimeNs } = await stat(path, { bigint: true });
        const stamp = `${size} ${mtimeNs}`;
        if (stamp === seen) return;
        seen = stamp;
        const version = digest(await readFile(path));
        const plugin = await readPlugin(path, await modules.load(path, version, version), version, pluginInput);
        const closers = [registry.register(plugin.tools), ...plugin.hooks.map((own) => hooks.add(plugin.name, own))];
        before?.close();
        before = { version, close: () => closers.forEach((close) => void close()) };
        self.problems = [];
        for (const name of plugin.unknown) {
          report({ path, line: 0, reason: `the hook ${name} is none of Toolgate's: it is never run` });
        }
      },
    };
    return self;
  }

  return {
    refresh() {
      // In turn, so that whoever asks gets what was there when they asked.
      last = last.then(refreshAll);
      return last;
    },
    problems: (workspace) =>
      watched.filter((one) => (one.workspace ?? workspace) === workspace).flatMap(({ problems }) => problems),
    pluginProblems: () => watched.filter(({ isPlugin }) => isPlugin).flatMap(({ problems }) => problems),
    close: modules.close,
  };
}

interface Watched {
  readonly path: string;
  readonly workspace: string | undefined;
  readonly isPlugin?: true;
  problems: Problem[];
  refresh(): Promise<void>;
}

interface Loaded {
  version: string;
  close(): void;
}

/** The tools of a file: its default export under the file's name, others behind it. What does not look like a tool is none. */
async function toolsOf(file: string, exports: Readonly<Record<string, unknown>>, version: string): Promise<Tool[]> {
  const name = basename(file, extname(file));
  const tools = await Promise.all(
    Object.entries(exports).map(([key, value]) => toolOf(key === "default" ? name : `${name}_${key}`, value, version)),
  );
  const found = tools.filter((tool) => tool !== undefined);
  if (found.length > 0) return found;
  throw new Error("it exports no tool: export default Tool.define({ description, args, execute }), say");
}

/** Modules go by the paths behind links. */
async function byRealPath(folder: string, files: readonly Source[]): Promise<ReadonlyMap<string, string>> {
  const named = files.map(async ({ path, sha256 }) => {
    const file = join(folder, path);
    return [await realpath(file).catch(() => file), sha256] as const;
  });
  return new Map(await Promise.all(named));
}

/** Why code of a workspace is not loaded, if it is not. */
function distrust(directory: string, { entries, digest }: Sources, trusted: string | undefined): string | undefined {
  if (entries.length === 0 || trusted === digest) return undefined;
  if (trusted === undefined) {
    return `this workspace has ${entries.length} tool file(s) of its own, which are not loaded: their code would run with the rights of the service. Look at it, then: toolgate trust ${directory}`;
  }
  return `the code of this workspace's tools has changed since it was trusted: what was loaded before serves until the service stops, nothing new is loaded. Look at it, then: toolgate trust ${directory}`;
}

const textOf = ({ path, line, reason }: Problem) => `${path}:${line} ${reason}`;

function digest(...parts: (string | Uint8Array)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex").slice(0, 32);
}
