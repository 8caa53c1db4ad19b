import { basename, extname } from "node:path";
import type { HookName, Hooks } from "../hooks.ts";
import type { Tool } from "../tool.ts";
import { toolOf } from "./foreign.ts";
import { within } from "./modules.ts";

/** Argument of a plugin that is a function. */
export interface PluginInput {
  /** Directory of the first workspace. */
  directory: string;
  worktree: string;
}

/** A loaded plugin. */
export interface LoadedPlugin {
  name: string;
  tools: Tool[];
  hooks: Hooks[];
  /** Names of its hooks that Toolgate does not know. */
  unknown: string[];
}

/** Reads the exports of a file: plugins of `definePlugin`, or functions that return hooks and tools, as in opencode. */
export async function readPlugin(
  path: string,
  exports: Readonly<Record<string, unknown>>,
  source: string,
  input: PluginInput,
): Promise<LoadedPlugin> {
  const plugin: LoadedPlugin = { name: basename(path, extname(path)), tools: [], hooks: [], unknown: [] };
  for (const exported of new Set(Object.values(exports))) {
    const part = await partOf(exported, input);
    if (typeof part !== "object" || part === null) continue;
    if ("name" in part && typeof part.name === "string") plugin.name = part.name;
    const own: Hooks = {};
    for (const [name, value] of Object.entries(part)) {
      if (typeof value !== "function") continue;
      if (isHook(name)) Object.assign(own, { [name]: value });
      else plugin.unknown.push(name);
    }
    plugin.hooks.push(own);
    for (const [name, value] of Object.entries("tool" in part ? Object(part.tool) : {})) {
      const tool = await toolOf(name, value, source);
      if (!tool) throw new Error(`its tool ${name} is not a tool: write { description, args, execute }`);
      plugin.tools.push(tool);
    }
  }
  if (plugin.hooks.length === 0)
    throw new Error("it exports no plugin: write, for example, export default definePlugin({ name, ... })");
  return plugin;
}

async function partOf(exported: unknown, input: PluginInput): Promise<unknown> {
  const make = typeof exported === "object" && exported !== null && "server" in exported ? exported.server : exported;
  return typeof make === "function" ? await within(10_000, Promise.resolve(make(input, {}))) : exported;
}

const names: Record<HookName, true> = {
  "tool.definition": true,
  "tool.execute.before": true,
  "permission.ask": true,
  "tool.execute.after": true,
  "shell.env": true,
};

function isHook(name: string): name is HookName {
  return Object.hasOwn(names, name);
}
