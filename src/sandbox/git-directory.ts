/** Returns the path inside the git directory to which a path belongs; undefined for other paths. */
export function pathInGitDirectory(path: string): string | undefined {
  const [, rest] = /^.*?\/\.git\/(.*)$/s.exec(path) ?? [];
  return rest;
}

/**
 * Checks if git takes commands from a file of its directory, or from the files of a directory there; `commondir` names another
 * directory with settings. The other files change with each commit, so commands may write them.
 */
export function isGitCode(pathInside: string): boolean {
  return /^(?!(refs|logs|objects|lfs)\/)(.*\/)?(commondir|config|config\.worktree|info\/attributes|hooks(\/.*)?)$/s.test(
    pathInside,
  );
}

/** Checks if a directory holds the objects of a repository, of which no name says anything. */
export const isObjectStore = (path: string) => /\/\.git\/(.*\/)?objects$/s.test(path);
