/** Returns the name of the root in a workspace name `ROOT/directory`. */
export function workspaceRoot(workspace: string): string {
  return workspace.split("/", 1)[0] ?? workspace;
}
