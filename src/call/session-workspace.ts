import { realpath } from "node:fs/promises";
import { isAbsolute, sep } from "node:path";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { openWorkspace, type Workspace } from "../tool/workspace.ts";

/** Opens the directory of `NAME` or `NAME/path`, which must lie inside the root after symlinks are resolved. */
export async function openNamedWorkspace(
  workspaces: Readonly<Record<string, string>>,
  name: string,
): Promise<Workspace> {
  const rootName = workspaceRoot(name);
  const rootDirectory = Object.hasOwn(workspaces, rootName) ? workspaces[rootName] : undefined;
  if (rootDirectory === undefined)
    throw unknownWorkspace(name, `configured are: ${Object.keys(workspaces).join(", ")}`);
  try {
    const root = await openWorkspace(rootName, rootDirectory);
    if (name === rootName) return root;
    const directory = await root.resolve(name.slice(rootName.length + 1));
    if (directory.external) throw unknownWorkspace(name, "the directory is not inside its root");
    return await openWorkspace(name, directory.absolute);
  } catch (cause) {
    if (cause instanceof RequestError) throw cause;
    throw unknownWorkspace(name, "the directory does not exist", cause);
  }
}

/** Returns the name of the innermost of some roots that contains a directory, links resolved; undefined if none does. */
export async function rootContaining(roots: readonly NamedRoot[], directory: string): Promise<string | undefined> {
  if (!isAbsolute(directory) || directory.includes("\0")) return undefined;
  const place = await realpath(directory).catch(() => undefined);
  return place === undefined ? undefined : rootAround(roots, place);
}

/** Name and directory of a workspace root. */
type NamedRoot = readonly [name: string, directory: string];

/** Returns the name of the innermost of some roots that contains a canonical path; undefined if none does. */
export function rootAround(roots: readonly NamedRoot[], place: string): string | undefined {
  const holding = roots.filter(
    ([, root]) => place === root || place.startsWith(root.endsWith(sep) ? root : root + sep),
  );
  return holding.sort(([, a], [, b]) => b.length - a.length)[0]?.[0];
}

function unknownWorkspace(workspace: string, why: string, cause?: unknown): RequestError {
  return new RequestError(ErrorReason.UNKNOWN_WORKSPACE, `workspace "${workspace}": ${why}`, { workspace }, { cause });
}
