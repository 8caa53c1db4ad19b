import { execFileSync, execSync } from "node:child_process";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

export const repository = join(import.meta.dirname, "../..");

/** Returns true for the name of a release's tag. */
export const isRelease = (name: string) => /^v\d+\.\d+\.\d+/.test(name);

/** Lists the releases in the history before a commit, newest first. None in a clone without tags. */
export function releasesBefore(commit: string): string[] {
  const options = ["--merged", `${commit}~1`, "--sort=-version:refname", "--list", "v*"];
  const listed = execFileSync("git", ["tag", ...options], { cwd: repository, encoding: "utf8" });
  return listed.split("\n").filter(isRelease);
}

/** Extracts a version from the history, with changes of texts of its files; returns its entry point. */
export async function entryOf(commit: string, change: Record<string, (text: string) => string> = {}): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-version-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  execSync(`git archive ${commit} src gen proto package.json | tar -x -C ${folder}`, { cwd: repository });
  for (const [name, edit] of Object.entries(change)) {
    const text = await readFile(join(folder, name), "utf8");
    if (edit(text) === text) throw new Error(`the change of ${name} changes nothing`);
    await writeFile(join(folder, name), edit(text));
  }
  await symlink(join(repository, "node_modules"), join(folder, "node_modules"));
  return join(folder, "src/main.ts");
}
