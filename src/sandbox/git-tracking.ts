import { dirname, join, relative } from "node:path";
import { gitDirectoriesOf } from "./git-directories.ts";
import { createGitIndexReader } from "./git-index.ts";

/** Creates the check if git tracks a file below a directory. */
export function createGitTracking(): (directory: string) => boolean {
  const pathsOf = createGitIndexReader();
  return (directory) => {
    for (let top = directory; ; top = dirname(top)) {
      const git = gitDirectoriesOf(top);
      if (git !== undefined) {
        const paths = pathsOf(join(git.own, "index"));
        const below = `${relative(top, directory)}/`;
        return paths === undefined || below === "/" || [...paths].some((path) => path.startsWith(below));
      }
      if (top === "/") return false;
    }
  };
}
