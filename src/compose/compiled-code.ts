import { lstatSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { enableCompileCache, flushCompileCache } from "node:module";
import { join } from "node:path";
import packageJson from "../../package.json" with { type: "json" };

/**
 * Lets Node read the compiled code of modules that an earlier start stored, and returns the function that stores it. Compiled code is
 * code: a directory that other users may write to is not used. Node compiles what is missing, damaged or of other sources.
 */
export function reuseCompiledCode(dataDirectory: string): () => void {
  const directory = join(dataDirectory, "compiled");
  const build = `${packageJson.version}-node-${process.versions.node}`;
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    const found = lstatSync(directory);
    if (!found.isDirectory() || found.uid !== process.geteuid?.() || (found.mode & 0o022) !== 0) return () => {};
    // Node never deletes what another version stored.
    for (const name of readdirSync(directory))
      if (name !== build) rmSync(join(directory, name), { recursive: true, force: true });
  } catch {
    // It only makes the start faster.
    return () => {};
  }
  enableCompileCache(join(directory, build));
  return flushCompileCache;
}
