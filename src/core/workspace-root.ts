/** The name of the root in `NAME/directory`. */
export function workspaceRoot(workspace: string): string {
  return workspace.split("/", 1)[0] ?? workspace;
}
