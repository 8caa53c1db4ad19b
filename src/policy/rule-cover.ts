import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { isPathKind } from "./rule-list.ts";
import { expandHome, type Rule } from "./rules.ts";
import { foldCase, isLiteral, toSlashes } from "./wildcard.ts";

/** Checks if a rule matches everything that another one matches. May return false where that is hard to decide, but never true wrongly. */
export function ruleCovers(rule: Rule, other: Rule, home: string): boolean {
  if (rule.when || !coversText(rule.permission, other.permission)) return false;
  if (rule.pattern === "*") return true;
  // A wildcard stands for permissions of both kinds.
  const sorts = isLiteral(other.permission) ? [isPathKind(other.permission)] : [true, false];
  return sorts.every((isPath) => (isPath ? coversPath(rule, other, home) : coversPattern(rule.pattern, other.pattern)));
}

/** Rules that ask or deny ignore the case of a path; rules that start at the root match the absolute path. */
function coversPath(rule: Rule, other: Rule, home: string): boolean {
  const [wide, narrow] = [rule, other].map(({ pattern }) => expandHome(toSlashes(pattern), home));
  if (wide === undefined || narrow === undefined || wide.startsWith("/") !== narrow.startsWith("/")) return false;
  if (rule.action !== PermissionAction.ALLOW) return coversPattern(foldCase(wide), foldCase(narrow));
  return other.action === PermissionAction.ALLOW && coversPattern(wide, narrow);
}

/** Compares both readings of a trailing ` *`, with and without it. */
function coversPattern(pattern: string, other: string): boolean {
  return readings(other).every((one) => readings(pattern).some((wide) => coversText(wide, one)));
}

const readings = (pattern: string) => (pattern.endsWith(" *") ? [pattern, pattern.slice(0, -2)] : [pattern]);

/** Checks if `pattern` matches every text that `other` matches: a star takes anything, including other wildcards. */
function coversText(pattern: string, other: string): boolean {
  let [at, from] = [0, 0];
  let star: { at: number; from: number } | undefined;
  while (from < other.length) {
    const [wide, narrow] = [pattern[at], other[from]];
    if (wide === "*") {
      star = { at, from };
      at += 1;
    } else if (wide === narrow || (wide === "?" && narrow !== "*")) {
      at += 1;
      from += 1;
    } else if (star) {
      star = { at: star.at, from: star.from + 1 };
      [at, from] = [star.at + 1, star.from];
    } else return false;
  }
  return /^\**$/.test(pattern.slice(at));
}
