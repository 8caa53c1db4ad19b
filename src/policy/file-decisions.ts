import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { FileRules } from "./file-rules.ts";
import type { Layers } from "./model.ts";
import { createPolicy } from "./policy.ts";
import { createConnectorFiles, gitFile, isProtectedName, protectedFile } from "./protected-files.ts";
import { editDoubts, type ReadPlace, readDoubts } from "./read-doubts.ts";
import { createCompiledRules, rulesOf } from "./rule-list.ts";
import { expandHome, type Rule } from "./rules.ts";
import { foldCase, matcher, toSlashes } from "./wildcard.ts";

/** Access to files that commands need as a whole: `read` must be allowed, `edit` must not be denied. */
export type FileUse = "read" | "edit";

/** Decides on many files at once, without a call. */
export interface FileDecisions {
  /**
   * Returns lower-case substrings that identify possibly restricted files below a directory: a path below it without any is
   * unrestricted. Holds for names of printable ASCII, and not for protected files. Undefined: any file may be restricted.
   */
  hints(access: FileUse, directory: ReadPlace): readonly string[] | undefined;
  /** Checks if a file or directory of that name may be protected, or belongs to the service. */
  mayBeProtected(name: string): boolean;
  /** Identifies the names that only these rules protect. */
  protectedKey: string;
  /** Returns the reason why rules do not allow to read, or deny to edit, a file; undefined if there is none. */
  restriction(access: FileUse, file: ReadPlace): string | undefined;
  /** Describes a file that each edit asks for, whatever rules say; undefined for other files. */
  protection(path: string): string | undefined;
  /**
   * Returns the paths that rules deny to edit and name without wildcards, as far as they are below a directory: canonical paths
   * if the directory is one. A later rule may allow one of them again.
   */
  deniedPaths(directory: ReadPlace): string[];
  /** Checks if every path below a directory is restricted, also those that do not exist yet. False if uncertain. */
  isClosed(access: FileUse, directory: ReadPlace): boolean;
  /** Checks if a rule may exempt a file with such an end of its path from a restriction in some place. True if uncertain. */
  mayBeExempt(access: FileUse, end: string): boolean;
}

/** Creates the decisions by these rules. */
export function createFileDecisions({ guard, home, connectorFiles, ...layers }: FileRules): FileDecisions {
  const policy = createPolicy({ guard, home, connectorFiles: () => connectorFiles });
  const compiled = createCompiledRules(home);
  const connectors = createConnectorFiles(() => connectorFiles);
  const { gitFiles } = layers;
  const own = new Set(
    [...connectorFiles, ...(gitFiles?.paths ?? [])].map((path) => foldCase(path.replace(/^.*\//, ""))),
  );

  function decide(permission: FileUse, { absolute, pattern }: ReadPlace): PermissionDecision | undefined {
    return policy.judge({ permission, patterns: [pattern], paths: [absolute] }, layers)[0];
  }

  function groupsOf(access: FileUse): { rules: readonly Rule[]; worst: PermissionAction }[] {
    const { wide, narrow }: Layers = layers;
    const about = rulesOf(compiled, access);
    const worst = access === "read" ? PermissionAction.ALLOW : PermissionAction.ASK;
    return [
      { rules: wide.flatMap(about), worst },
      ...narrow.map((list) => ({
        rules: about(list),
        worst: list.layer === PermissionLayer.INHERITED ? PermissionAction.ASK : worst,
      })),
    ];
  }

  return {
    hints(access, directory) {
      const about = rulesOf(compiled, access);
      if (access === "edit") return editDoubts(directory, layers, { about, home });
      // The caller hides what belongs to the service; files of connectors are found by their names.
      return readDoubts(directory, layers, { about, denied: [], home, connectorFiles: { isBelow: () => false } });
    },
    mayBeProtected(name) {
      const folded = foldCase(name);
      return !/^[ -~]*$/.test(name) || isProtectedName(folded) || policyNames.has(folded) || own.has(folded);
    },
    restriction(access, file) {
      const decision = decide(access, file);
      const isRestricted =
        access === "read" ? decision?.action !== PermissionAction.ALLOW : decision?.action === PermissionAction.DENY;
      return isRestricted ? (decision?.reason ?? "no rule matches") : undefined;
    },
    protection: (path) =>
      protectedFile("edit", path) ?? connectors.describe("edit", path) ?? gitFile("edit", path, gitFiles),
    protectedKey: [...own].join("/"),
    deniedPaths: (directory) => groupsOf("edit").flatMap(({ rules }) => literalDenials(rules, directory, home)),
    isClosed: (access, directory) => groupsOf(access).some(({ rules, worst }) => closes(rules, worst, directory, home)),
    mayBeExempt: (access, end) =>
      groupsOf(access).some(({ rules, worst }) => exempts(rules, worst, `/${foldCase(end)}`)),
  };
}

/** Files of the service in a workspace. */
const policyNames: ReadonlySet<string> = new Set(["toolgate.toml", "config.toml"]);

/** Checks if the last rule that can match any path below a directory matches all of them and is stricter than `worst`. */
function closes(rules: readonly Rule[], worst: PermissionAction, directory: ReadPlace, home: string): boolean {
  for (const rule of rules.toReversed()) {
    const pattern = foldCase(expandHome(toSlashes(rule.pattern), home));
    const place = pattern.startsWith("/") ? directory.absolute : directory.pattern;
    const start = place === "." ? "" : `${foldCase(toSlashes(place))}/`;
    const isStrict = rule.action > worst;
    if (isStrict && pattern.endsWith("*") && !pattern.endsWith(" *") && matcher(pattern)(start)) return true;
    if (!isStrict && mayMatchBelow(pattern, start)) return false;
  }
  return false;
}

/** Returns the paths below a directory that rules deny without wildcards, or with all that is below them. */
function literalDenials(rules: readonly Rule[], { absolute, pattern: place }: ReadPlace, home: string): string[] {
  return rules.flatMap(({ pattern, action }) => {
    const path = expandHome(toSlashes(pattern), home).replace(/\/\*$/, "");
    const isRelative = !path.startsWith("/");
    if (action !== PermissionAction.DENY || (isRelative && place !== ".")) return [];
    const whole = isRelative ? `${absolute}/${path}` : path;
    const isPlain = !/[*?]|\/\.{0,2}(\/|$)/.test(whole);
    return isPlain && whole.startsWith(`${absolute}/`) ? [whole] : [];
  });
}

/** Checks if a path with this end may match a strict rule, and in another place a later one that is not stricter than `worst`. */
function exempts(rules: readonly Rule[], worst: PermissionAction, end: string): boolean {
  let isExempt = false;
  for (const rule of rules.toReversed()) {
    const pattern = foldCase(toSlashes(rule.pattern));
    const tail = `/${pattern}`.replace(/^.*[*?]/s, "").trimEnd();
    if (!end.endsWith(tail) && !tail.endsWith(end)) continue;
    const isStrict = rule.action > worst;
    if (isStrict && (isExempt || (pattern.startsWith("*") && matcher(pattern)(end)))) return isExempt;
    isExempt ||= !isStrict;
  }
  return false;
}

/** Checks if a pattern may match a path that begins with `start`: their literal beginnings agree. */
function mayMatchBelow(pattern: string, start: string): boolean {
  const literal = pattern.replace(/[*?].*$/s, "").trimEnd();
  return literal.startsWith(start) || start.startsWith(literal);
}
