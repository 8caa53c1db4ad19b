import { dirname, join } from "node:path";
import type { Ask } from "../core/ask.ts";

/** Makes the asks for one file or directory; adds `external_directory` if it lies outside the workspace. */
export function pathAsks(permission: string, path: ResolvedPath, metadata?: Ask["metadata"]): Ask[] {
  const own = {
    permission,
    patterns: [path.pattern],
    paths: [path.absolute],
    ...cautionFor(path),
  };
  return [...externalAsks(askedPlace(permission, path)), metadata === undefined ? own : { ...own, metadata }];
}

/** The place that an ask of a permission is about: a list names a directory, also where no file can be looked up. */
export const askedPlace = <P extends ResolvedPath>(permission: string, path: P): P =>
  permission === "list" ? { ...path, isDirectory: true } : path;

/** Makes the part of an ask that says why rules about names do not suffice for a file; empty for nearly all files. */
export function cautionFor({
  absolute,
  otherNames,
  isSpecial,
}: Pick<ResolvedPath, "absolute" | "otherNames" | "isSpecial">): Pick<Ask, "alwaysAsk"> {
  if (isSpecial) return { alwaysAsk: "is a pipe, a socket or a device" };
  if (!otherNames || sharedByInstallers.test(absolute)) return {};
  return { alwaysAsk: "has other names (hard links), under which a rule might say otherwise" };
}

/** Directories whose files package managers link to their store; they hold no secrets. */
const sharedByInstallers = /\/(node_modules|site-packages)\//;

/** Makes the ask for a directory outside the workspace; none for one inside. */
export function externalAsks(path: ResolvedPath): Ask[] {
  if (!path.external) return [];
  const directory = path.isDirectory ? path.absolute : dirname(path.absolute);
  return [
    {
      permission: "external_directory",
      patterns: [join(directory, "*")],
      paths: [directory],
      metadata: { filepath: path.absolute, parentDir: directory },
    },
  ];
}

/** A path after symlinks and `..` were resolved. */
export interface ResolvedPath {
  /** The canonical absolute path: existing parts are resolved, missing ones are appended as written. */
  absolute: string;
  /** The form that asks show and rules match: relative inside the workspace, absolute outside. */
  pattern: string;
  /** True outside the workspace. */
  external: boolean;
  /** True for an existing directory. */
  isDirectory: boolean;
  /** True for a file with other names (hard links), which rules about names do not see. */
  otherNames: boolean;
  /** True for a pipe, a socket or a device. */
  isSpecial: boolean;
}
