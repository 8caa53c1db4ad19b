import { relative, resolve } from "node:path";
import type { ExpandPlace } from "./touched.ts";

/** Paths of a repository, in the forms that rules match. */
export interface RepositoryPlaces {
  /** The top directory of the repository. */
  top: string;
  /** The working directory of the command. */
  cwd: Pick<ExpandPlace, "absolute" | "pattern" | "external">;
}

/**
 * Returns the place of a path below the repository without looking at the disk: a link that stands there today has nothing to
 * do with the file of the same name in the history.
 */
export function placeInHistory({ cwd }: RepositoryPlaces, absolute: string): ExpandPlace {
  const below = cwd.pattern === "." ? "" : `/${cwd.pattern}`;
  const isInside = !cwd.external && cwd.absolute.endsWith(below);
  const root = cwd.absolute.slice(0, cwd.absolute.length - below.length);
  const isShort = isInside && (absolute === root || absolute.startsWith(`${root}/`));
  // The ask is about content in git, not about a directory outside the workspace.
  const plain = { absolute, external: false, isDirectory: false };
  return { ...plain, pattern: isShort ? relative(root, absolute) || "." : absolute };
}

/** Selects the names below the given paths; undefined if no name is below any of them. */
export function namesBelow(
  names: readonly string[],
  limits: readonly string[],
  { top, cwd }: RepositoryPlaces,
): string[] | undefined {
  const starts = limits.map((limit) => relative(top, resolve(cwd.absolute, limit)));
  const found = names.filter((name) =>
    starts.some((start) => start === "" || name === start || name.startsWith(`${start}/`)),
  );
  return found.length === 0 ? undefined : found;
}
