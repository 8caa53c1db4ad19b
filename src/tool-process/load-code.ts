import { basename, extname } from "node:path";
import { create } from "@bufbuild/protobuf";
import {
  type WorkerFile,
  WorkerFileKind,
  type WorkerLoad,
  type WorkerProblem,
  type WorkerProject,
  WorkerProjectSchema,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { exportedTool } from "../tool/files/foreign.ts";
import { within } from "../tool/within.ts";
import type { ModuleLoader } from "./module-loader.ts";
import { problemOf } from "./problem.ts";
import { type PluginFile, readPluginFile, type ServedPlugin } from "./read-plugin.ts";
import type { ServedTool } from "./served-tool.ts";

/** The code of the process, as it is until the process ends. */
export interface LoadedCode {
  readonly project: WorkerProject;
  readonly tools: ReadonlyMap<string, ServedTool>;
  readonly plugins: readonly ServedPlugin[];
  readonly files: readonly Pick<WorkerFile, "path" | "sha256">[];
  readonly problems: readonly Omit<WorkerProblem, "$typeName">[];
}

/** Time that the module of a file may take to load. */
const loadMs = 10_000;

/** Imports the files; one that cannot be loaded becomes a problem and affects no other. */
export async function loadCode(load: WorkerLoad): Promise<LoadedCode> {
  const loader = await createModuleLoader(load);
  const project = load.project ?? create(WorkerProjectSchema);
  const tools = new Map<string, ServedTool>();
  const plugins: ServedPlugin[] = [];
  const problems: Omit<WorkerProblem, "$typeName">[] = [];
  // Together: the time that one wastes is not added to that of others.
  const loads = load.files.map((file) => within(loadMs, loader.load(file)));
  for (const [index, file] of load.files.entries()) {
    try {
      const exports = (await Promise.allSettled(loads))[index];
      if (exports?.status !== "fulfilled") throw exports?.reason;
      const source = loader.digestOf(file);
      const found =
        load.kind === WorkerFileKind.PLUGIN
          ? await readPluginFile(file, exports.value, { project, source })
          : await toolsOf(loader, file, exports.value);
      checkTools(tools, found.tools);
      for (const served of found.tools) tools.set(served.tool.name, served);
      plugins.push(...found.plugins);
      problems.push(...found.problems.map((problem) => ({ ...problem, file: "" })));
    } catch (error) {
      problems.push({ ...problemOf(file, error), file });
    }
  }
  return { project, tools, plugins, files: loader.files(), problems };
}

/** Returns the tools of a file: its default export is named like the file, others `file_export`. Ignores exports of other kinds. */
async function toolsOf(
  loader: ModuleLoader,
  file: string,
  exports: Readonly<Record<string, unknown>>,
): Promise<PluginFile> {
  const source = loader.digestOf(file);
  const name = basename(file, extname(file));
  const tools = await Promise.all(
    Object.entries(exports).map(([key, value]) => exportedTool(key === "default" ? name : `${name}_${key}`, value)),
  );
  const found = tools.flatMap((tool) => (tool ? { ...tool, source, file } : []));
  // A file beside tools may hold what several of them share.
  if (found.length > 0 || loader.isImported(file)) return { tools: found, plugins: [], problems: [] };
  throw new Error("it exports no tool: write, for example, export default Tool.define({ description, args, execute })");
}

const maxDescriptionLength = 16_384;

/** Throws if a tool has the name of another one, or cannot be declared. */
function checkTools(tools: ReadonlyMap<string, ServedTool>, found: readonly ServedTool[]): void {
  const names = new Set(tools.keys());
  for (const { tool } of found) {
    if (names.has(tool.name)) throw new Error(`there is another tool ${tool.name}: rename one of them`);
    names.add(tool.name);
    const { length } = tool.definition.description;
    if (length > maxDescriptionLength)
      throw new Error(
        `the description of ${tool.name} has ${length} characters, at most ${maxDescriptionLength} are allowed`,
      );
  }
}

/** Creates the loader of the runtime; the libraries of the other one are not loaded. */
async function createModuleLoader({ files, expected }: WorkerLoad): Promise<ModuleLoader> {
  const hashes = new Map(Object.entries(expected));
  if (process.versions.bun !== undefined) return (await import("./bun-loader.ts")).createBunLoader(files, hashes);
  return (await import("./node-loader.ts")).createNodeLoader(files, hashes);
}
