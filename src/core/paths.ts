import { sep } from "node:path";

/** Checks if a path is a directory or lies below it. */
export const isWithin = (path: string, directory: string) =>
  path === directory || path.startsWith(directory.endsWith(sep) ? directory : directory + sep);

/** Returns the name of the root in a workspace name `ROOT/directory`. */
export function workspaceRoot(workspace: string): string {
  return workspace.split("/", 1)[0] ?? workspace;
}
