import type { SandboxPlace } from "../../sandbox/confinement.ts";
import type { ResolvedPath } from "../../tool/resolved-path.ts";
import type { CallPaths, PlanContext } from "../../tool/tool.ts";
import { placeDirectories } from "./place-directories.ts";

/** Returns the place of a command: its directories, and the rules that hold for the files inside. */
export async function commandPlace(
  { agent, workspace, judge }: Pick<PlanContext, "agent" | "workspace" | "judge">,
  { outside, files }: CallPaths,
  { directory, editTrees }: { directory: ResolvedPath; editTrees: readonly string[] },
): Promise<SandboxPlace> {
  return {
    agent,
    cwd: directory.absolute,
    workspace: workspace.directory,
    ...(await placeDirectories({ judge, outside, files }, editTrees)),
    files: { rules: judge.fileRules(), ...files, editTrees },
  };
}
