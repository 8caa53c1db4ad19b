/** Permissions that the engine asks for, whichever tool is called. */
export const enginePermissions: readonly string[] = ["doom_loop", "external_directory"];

/** Permissions of opencode that no tool here asks, or only one that is configured; rules written for opencode name them. */
const opencodePermissions = ["codesearch", "lsp", "task", "websearch"];

/** A tool by what it can ask; undefined permissions: anything, first of all its own name. */
export interface AskingTool {
  readonly name: string;
  readonly permissions: readonly string[] | undefined;
}

/** Returns the permissions under which a tool is listed: those that it declares, otherwise its own name. */
export function permissionsOf({ name, permissions }: AskingTool): readonly string[] {
  return permissions ?? [name];
}

/** Returns the permissions that rules can be about, by name: those of the tools, of the engine and of opencode. */
export function knownPermissions(tools: readonly AskingTool[]): string[] {
  return [...new Set([...tools.flatMap(permissionsOf), ...enginePermissions, ...opencodePermissions])].sort();
}

/** Reports whether a permission is that of an agent's own tool, `KIND:Tool`, of which any may exist. */
export function isForeignPermission(permission: string): boolean {
  return /^[a-z][a-z0-9-]*:/.test(permission);
}

/** Reports whether an agent may see a tool: it asks for nothing, or at least one of its permissions is not denied as a whole. */
export function isListed(tool: AskingTool, isDenied: (permission: string) => boolean): boolean {
  const permissions = permissionsOf(tool);
  return permissions.length === 0 || !permissions.every(isDenied);
}
