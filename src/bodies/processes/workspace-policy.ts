import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createFileStamp } from "./file-stamp.ts";
import type { Problem } from "./problem.ts";
import type { ToolSource } from "./sources.ts";
import type { Trust } from "./trust.ts";

/**
 * Creates the source of a workspace's policy file, which defines no tools. In a trusted workspace a file that is not trusted as it
 * is becomes a problem, since its rules only narrow until it is trusted again.
 */
export function workspacePolicySource(workspace: { name: string; directory: string }, trust: Trust): ToolSource {
  const codeDirectory = join(workspace.directory, ".opencode");
  const path = join(codeDirectory, "config.toml");
  const stamp = createFileStamp();
  let problems: Problem[] = [];
  return {
    workspace: workspace.name,
    isConfigured: false,
    problems: () => problems,
    guardProblem: () => undefined,
    isCurrent: stamp.isCurrent,
    async refresh() {
      stamp.take([path, trust.fileOf(workspace.directory)], Date.now());
      const isTrusted = (await trust.get(workspace.directory)) !== undefined;
      const present = await policyDigestIn(codeDirectory);
      const trusted = await trust.policyOf(workspace.directory);
      const isStale = isTrusted && present !== undefined && present !== trusted;
      problems = isStale ? [{ path, line: 0, reason: staleReason(workspace.directory, trusted) }] : [];
    },
    describe: async () => undefined,
    close: async () => {},
  };
}

function staleReason(directory: string, trusted: string | undefined): string {
  const state =
    trusted === undefined ? "was added after the workspace was trusted" : "has changed since it was trusted";
  return `the policy file ${state}, so its rules only narrow; review it, then run: toolgate trust ${directory}`;
}

/** Returns the SHA-256 of the policy file in a workspace's `.opencode`; undefined if there is none. */
export async function policyDigestIn(codeDirectory: string): Promise<string | undefined> {
  const text = await readFile(join(codeDirectory, "config.toml")).catch(() => undefined);
  return text && createHash("sha256").update(text).digest("hex");
}
