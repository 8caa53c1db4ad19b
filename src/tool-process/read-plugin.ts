import { readFileSync } from "node:fs";
import { basename, extname } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import type { WorkerProject } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { exportedTool } from "../tool/files/foreign.ts";
import { isHookName } from "../tool/hooks.ts";
import { within } from "../tool/within.ts";
import { pluginInput } from "./plugin-input.ts";
import type { LoadProblem } from "./problem.ts";
import type { ServedTool } from "./served-tool.ts";

/** A plugin with the hooks that Toolgate runs, by name. */
export interface ServedPlugin {
  readonly name: string;
  readonly hooks: Readonly<Record<string, (input: JsonObject, output: JsonObject) => unknown>>;
}

/** Tools and hooks of a plugin file. */
export interface PluginFile {
  plugins: ServedPlugin[];
  tools: ServedTool[];
  /** Parts of it that have no effect. */
  problems: LoadProblem[];
}

/** Time that the function of a plugin may take. */
const makeMs = 10_000;

/**
 * Reads the exports of a file: plugins of `definePlugin`, or functions that return hooks and tools, as in opencode. Throws if it
 * exports none, since it may be meant to guard calls; a file without any code guards nothing.
 */
export async function readPluginFile(
  path: string,
  exports: Readonly<Record<string, unknown>>,
  { project, source }: { project: WorkerProject; source: string },
): Promise<PluginFile> {
  const found: PluginFile = { plugins: [], tools: [], problems: [] };
  for (const exported of new Set(Object.values(exports))) {
    const made = await makePlugin(exported, project);
    if (typeof made === "object" && made !== null) await addPlugin(found, path, made, source);
  }
  if (found.plugins.length > 0) return found;
  if (hasCode(path))
    throw new Error("it exports no plugin: write, for example, export default definePlugin({ name, ... })");
  found.problems.push({ path, line: 0, reason: "it has no code, only comments: nothing of it is run" });
  return found;
}

/** Calls the function of a plugin; other exports are returned as they are. */
async function makePlugin(exported: unknown, project: WorkerProject): Promise<unknown> {
  const make = typeof exported === "object" && exported !== null && "server" in exported ? exported.server : exported;
  return typeof make === "function" ? await within(makeMs, Promise.resolve(make(pluginInput(project), {}))) : exported;
}

async function addPlugin(found: PluginFile, path: string, made: object, source: string): Promise<void> {
  const name = "name" in made && typeof made.name === "string" ? made.name : basename(path, extname(path));
  const hooks: Record<string, ServedPlugin["hooks"][string]> = {};
  const report = (reason: string) => found.problems.push({ path, line: 0, reason });
  for (const [key, value] of Object.entries(made)) {
    if (typeof value === "function" && isHookName(key)) hooks[key] = (input, output) => value.call(made, input, output);
    else if (typeof value === "function") report(`the hook ${key} is unknown to Toolgate: it is never run`);
    else if (key !== "name" && key !== "tool") report(`the part ${key} is unknown to Toolgate: it has no effect`);
  }
  found.plugins.push({ name, hooks });
  for (const [key, value] of Object.entries("tool" in made ? Object(made.tool) : {})) {
    const tool = await exportedTool(key, value);
    if (!tool) throw new Error(`its tool ${key} is not a tool: write { description, args, execute }`);
    found.tools.push({ ...tool, source, file: path });
  }
}

function hasCode(path: string): boolean {
  return (
    readFileSync(path, "utf8")
      .replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "")
      .trim() !== ""
  );
}
