import { execFile } from "node:child_process";
import { mkdir, readFile, symlink } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const root = join(import.meta.dirname, "../..");
const run = promisify(execFile);

/** Names a commit in short; throws if the repository has no such commit. */
export async function resolveCommit(commit: string): Promise<string> {
  try {
    return (await git("rev-parse", "--verify", "--short", `${commit}^{commit}`)).trim();
  } catch {
    throw new Error(`--compare ${commit}: the repository has no such commit`);
  }
}

/** Puts the files of a commit into `folder`, with its dependencies, and resolves to its `src/main.ts`. */
export async function checkOut(commit: string, folder: string): Promise<string> {
  await mkdir(folder, { recursive: true });
  await run("sh", ["-c", 'git archive "$0" | tar -x -C "$1"', commit, folder], { cwd: root });
  if ((await dependencies(root)) === (await dependencies(folder))) {
    await symlink(join(root, "node_modules"), join(folder, "node_modules"));
  } else {
    await run("npm", ["ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"], { cwd: folder });
  }
  return join(folder, "src/main.ts");
}

async function git(...args: readonly string[]): Promise<string> {
  return (await run("git", args, { cwd: root })).stdout;
}

/** The locked packages, without the entry of the package itself. */
async function dependencies(folder: string): Promise<string> {
  const { packages } = JSON.parse(await readFile(join(folder, "package-lock.json"), "utf8"));
  return JSON.stringify({ ...packages, "": undefined });
}
