import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { FileRules } from "../policy/file-rules.ts";
import { expandHome, type Rule } from "../policy/rules.ts";
import { matcher, toSlashes } from "../policy/wildcard.ts";

/** Directories outside the workspace that rules name. */
export interface NamedDirectories {
  /** Directories below which rules may allow everything: whether they do is for the caller to judge. */
  readonly candidates: readonly string[];
  /** Directories that rules close, or open only after an ask. */
  readonly closed: readonly string[];
}

/**
 * Finds the directories that rules for `external_directory` name as `DIRECTORY/*`. One below which another rule may match a part
 * that has no name is no candidate, since that part could not be hidden.
 */
export function namedDirectories({ wide, narrow, home }: FileRules): NamedDirectories {
  const rules = [...wide, ...narrow].flatMap(({ rules }) => rules).filter(isAboutDirectories);
  const named = rules.map(({ pattern, action }) => {
    const path = expandHome(toSlashes(pattern), home);
    return { path, action, directory: path === "*" ? "/" : literalDirectory(path) };
  });
  const restricting = named.filter(({ action }) => action !== PermissionAction.ALLOW);
  const unnamed = restricting.filter(({ directory }) => directory === undefined).map(({ path }) => path);
  const opened = named.filter(({ action }) => action === PermissionAction.ALLOW).map(({ directory }) => directory);
  return {
    candidates: [...new Set(opened)].filter(
      (directory) => directory !== undefined && !unnamed.some((pattern) => mayMatchBelow(pattern, directory)),
    ) as string[],
    closed: restricting.flatMap(({ directory = "/" }) => (directory === "/" ? [] : [directory])),
  };
}

const isAboutDirectories = ({ permission }: Rule) =>
  permission === "external_directory" || (permission.includes("*") && matcher(permission)("external_directory"));

/** Returns the directory of a pattern `DIRECTORY/*`; undefined if it has other wildcards or is no absolute path. */
const literalDirectory = (pattern: string) => /^(\/|\/[^*?]*[^*?/])\/?\*$/.exec(pattern)?.[1];

/** Checks if a pattern may match something below a directory: their literal beginnings agree. */
function mayMatchBelow(pattern: string, directory: string): boolean {
  const literal = pattern.replace(/[*?].*$/s, "");
  const start = directory === "/" ? "/" : `${directory}/`;
  return literal.startsWith(start) || start.startsWith(literal);
}
