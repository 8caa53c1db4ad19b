import { WorkerFileKind } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { hashFiles } from "./file-hashes.ts";
import { createFileStamp } from "./file-stamp.ts";
import type { Problem } from "./problem.ts";
import { createProcessSource, type ProcessParts } from "./process-source.ts";
import type { ToolSource } from "./tool-source.ts";

/** A plugin that the configuration names. */
export interface ConfiguredPlugin {
  readonly path: string;
  /** Calls run without it if it cannot be loaded. */
  readonly optional: boolean;
}

/** Creates the source of a plugin file in one workspace; nothing is loaded before its first refresh. */
export function pluginSource(
  { path, optional }: ConfiguredPlugin,
  workspace: { readonly name: string; readonly directory: string },
  rank: number,
  parts: ProcessParts,
): ToolSource {
  const stamp = createFileStamp();
  const loaded = createProcessSource({ path, workspace }, { kind: WorkerFileKind.PLUGIN, rank }, parts);
  let wasTried = false;
  return {
    workspace: workspace.name,
    isConfigured: true,
    problems: loaded.problems,
    guardProblem() {
      const problem = wasTried ? loaded.missing() : { path, line: 0, reason: "it was not loaded yet" };
      return optional || !problem ? undefined : denial(path, problem);
    },
    isCurrent: (seen) => stamp.isCurrent(seen) && !loaded.isDue(),
    async refresh() {
      const readSince = Date.now();
      stamp.take([path, ...loaded.loadedFiles()], readSince);
      await loaded.load({ files: [path], hashes: await hashFiles([path]) });
      wasTried = true;
      // Its imports are known only now.
      stamp.take([path, ...loaded.loadedFiles()], readSince);
    },
    describe: loaded.describe,
    close: loaded.close,
  };
}

function denial(path: string, { line, reason }: Problem): string {
  return `the plugin ${path}${line > 0 ? `, line ${line},` : ""} is not loaded and may guard calls: ${reason}. Correct it, take it out of plugin in toolgate.toml, or write { path = ${JSON.stringify(path)}, optional = true } there`;
}
