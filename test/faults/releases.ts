import { execFileSync } from "node:child_process";

/** Returns true for the name of a release's tag. */
export const isRelease = (name: string) => /^v\d+\.\d+\.\d+/.test(name);

/** Lists the releases in the history before a commit, newest first. None in a clone without tags. */
export function releasesBefore(commit: string): string[] {
  const options = ["--merged", `${commit}~1`, "--sort=-version:refname", "--list", "v*"];
  const listed = execFileSync("git", ["tag", ...options], { cwd: import.meta.dirname, encoding: "utf8" });
  return listed.split("\n").filter(isRelease);
}
