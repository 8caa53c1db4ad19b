import { isAbsolute, relative, resolve } from "node:path";
import { ToolFailure } from "./errors.ts";
import { pathAsks, type ResolvedPath } from "./path-asks.ts";
import type { Tool } from "./tool.ts";
import type { Workspace } from "./workspace.ts";

/** Returns a workspace whose paths are judged as text, for a caller on another disk: no file is looked up, and none can be opened. */
export function lexicalWorkspace({ name, directory }: Pick<Workspace, "name" | "directory">): Workspace {
  return {
    name,
    directory,
    async resolve(path) {
      if (path.includes("\0")) throw new ToolFailure("A path cannot contain a NUL character. Remove it.");
      const absolute = isAbsolute(path) ? resolve(path) : resolve(directory, path);
      const inside = relative(directory, absolute);
      const external = inside === ".." || inside.startsWith("../");
      const resolved: ResolvedPath = {
        absolute,
        pattern: external ? absolute : inside || ".",
        external,
        isDirectory: false,
        otherNames: false,
        isSpecial: false,
      };
      return {
        ...resolved,
        asks: (permission, metadata) => pathAsks(permission, resolved, metadata),
        open: () => undefined,
      };
    },
  };
}

/** Returns the workspace by which asks of a tool are judged: a tool of a worker may run on another disk. */
export function judgedWorkspace({ remote }: Pick<Tool, "remote">, workspace: Workspace): Workspace {
  return remote === undefined ? workspace : lexicalWorkspace(workspace);
}
