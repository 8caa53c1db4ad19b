import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { addressTest, readAddress } from "./address.ts";
import { type Condition, describeFacts, type Facts, readCondition } from "./condition.ts";
import type { LayerRules, MatchSteps } from "./model.ts";
import { expandHome, type Rule } from "./rules.ts";
import { foldCase, isLiteral, matcher, scansOf, toSlashes } from "./wildcard.ts";

/** A rule and its index in its list. */
export interface Placed {
  index: number;
  rule: Rule;
}

/** One pattern of an ask, in the forms that rules match. */
export interface Target {
  permission: string;
  text: string;
  /** The absolute path, for permissions that are judged by path; otherwise the same as `text`. */
  absolute: string;
  foldedText: string;
  foldedAbsolute: string;
  /** Returns what conditions may use; called only where a rule has one. */
  facts(): Facts;
}

/** A rule whose pattern matches and whose condition is not met. */
export interface Unmet extends Placed {
  /** What the condition found, for people. */
  unmet: string;
}

/** A compiled list of rules. */
export interface RuleList {
  /** Returns the last rule that matches. Spends an upper bound of the characters that it compares first. */
  last(target: Target, steps?: MatchSteps): Placed | undefined;
  /** Returns every rule that matches, in order; see `last`. */
  all(target: Target, steps?: MatchSteps): readonly Placed[];
  /** Returns an upper bound of the characters that `last` or `all` compare. */
  stepsFor(target: Target): number;
  /** Returns the rules that would match, but for their conditions, in order. */
  unmet(target: Target): readonly Unmet[];
  /** Returns every rule about a permission, in order, without those that allow only under a condition. */
  about(permission: string): readonly Placed[];
  /** True if a condition uses the fact `contained`. */
  readonly usesContainment: boolean;
}

/** Builds the target of a pattern; `path` is the canonical absolute path, if the tool gave one. */
export function targetOf(permission: string, pattern: string, path?: string, facts: () => Facts = unknown): Target {
  if (!isPathKind(permission)) {
    const text = (permission === "webfetch" && readAddress(pattern)?.url) || pattern;
    return { permission, text, absolute: text, foldedText: text, foldedAbsolute: text, facts };
  }
  const text = toSlashes(pattern);
  const absolute = path === undefined || !filePermissions.has(permission) ? text : toSlashes(path);
  return { permission, text, absolute, foldedText: foldCase(text), foldedAbsolute: foldCase(absolute), facts };
}

const unknown = (): Facts => ({});

/** Checks if the patterns of a permission are paths, or are written like paths. */
export function isPathKind(permission: string): boolean {
  return filePermissions.has(permission) || likePaths.has(permission);
}

/** Checks if the patterns of a permission name files and directories, so that each has a canonical path. */
export function isFileKind(permission: string): boolean {
  return filePermissions.has(permission);
}

/**
 * Compiles rules into an index, so that a decision tries only those of its permission, and for texts such as commands only
 * those that begin with the same word or with a wildcard. Do not change the array afterwards.
 */
export function compileRules(rules: readonly Rule[], home: string): RuleList {
  const all = rules.map((rule, index) => compile(rule, index, home));
  const hasConditions = all.some(({ condition }) => condition !== undefined);
  const general = all.filter(({ rule }) => !isLiteral(rule.permission));
  const named = new Set(rules.map(({ permission }) => permission).filter(isLiteral));
  // Caches only permissions that rules name: callers choose the others, and must not fill memory with them.
  const byPermission = new Map<string, Bucket>();
  const bucketOf = (permission: string): Bucket => {
    if (!named.has(permission))
      return general.some((rule) => rule.isAbout(permission)) ? bucket(general, permission) : empty;
    const known = byPermission.get(permission) ?? bucket(all, permission);
    byPermission.set(permission, known);
    return known;
  };
  const testFor = (target: Target): ((rule: CompiledRule) => boolean) => {
    if (isPathKind(target.permission)) return (rule) => rule.meetsPath(target);
    if (target.permission === "webfetch") return (rule) => rule.meetsAddress(target.text);
    return (rule) => rule.meetsText(target.text);
  };
  const meetsWhole = (target: Target) => {
    const meets = testFor(target);
    return (rule: CompiledRule) => meets(rule) && isMet(rule, target);
  };
  const groupsFor = (target: Target): readonly RuleGroup[] => {
    const { all, byWord, anyWord } = bucketOf(target.permission);
    if (isPathKind(target.permission) || target.permission === "webfetch") return [all];
    const worded = byWord.get(firstWord(target.text));
    return worded ? [worded, anyWord] : [anyWord];
  };
  const stepsOf = (groups: readonly RuleGroup[], target: Target) =>
    groups.reduce((sum, { rules, scans }) => sum + rules.length + scans * target.text.length, 0);
  const charged = (target: Target, steps?: MatchSteps) => {
    const groups = groupsFor(target);
    steps?.spend(stepsOf(groups, target));
    return groups;
  };
  return {
    usesContainment: all.some(({ condition }) => condition?.names.has("contained")),
    about: (permission) =>
      bucketOf(permission).all.rules.filter(
        ({ rule, condition }) => condition === undefined || rule.action !== PermissionAction.ALLOW,
      ),
    stepsFor: (target) => stepsOf(groupsFor(target), target),
    last(target, steps) {
      const meets = meetsWhole(target);
      const found = charged(target, steps).flatMap(({ rules }) => rules.findLast(meets) ?? []);
      return found.length > 1 ? found.reduce((one, other) => (one.index > other.index ? one : other)) : found[0];
    },
    all(target, steps) {
      const meets = meetsWhole(target);
      return charged(target, steps)
        .flatMap(({ rules }) => rules.filter(meets))
        .sort((one, other) => one.index - other.index);
    },
    unmet(target) {
      if (!hasConditions) return noneUnmet;
      const meets = testFor(target);
      return groupsFor(target)
        .flatMap(({ rules }) => rules.filter((rule) => rule.condition && meets(rule) && !isMet(rule, target)))
        .sort((one, other) => one.index - other.index)
        .map(({ index, rule, condition }) => ({
          ...{ index, rule },
          unmet: condition ? describeFacts(condition, target.facts()) : "",
        }));
    },
  };
}

const noneUnmet: readonly Unmet[] = [];

/** Rules that are tried together. */
interface RuleGroup {
  rules: readonly CompiledRule[];
  /** The number of times that they look at each character of a text. */
  scans: number;
}

/** The rules about one permission: all, those with a literal first word by that word, and the rest. */
interface Bucket {
  all: RuleGroup;
  byWord: ReadonlyMap<string, RuleGroup>;
  anyWord: RuleGroup;
}

function bucket(rules: readonly CompiledRule[], permission: string): Bucket {
  const about = rules.filter((rule) => rule.isAbout(permission));
  const hasWord = ({ rule }: CompiledRule) => isLiteral(firstWord(rule.pattern));
  const byWord = Map.groupBy(about.filter(hasWord), ({ rule }) => firstWord(rule.pattern));
  return {
    all: groupOf(about),
    byWord: new Map([...byWord].map(([word, alike]) => [word, groupOf(alike)])),
    anyWord: groupOf(about.filter((rule) => !hasWord(rule))),
  };
}

const noRules: RuleGroup = { rules: [], scans: 0 };
const empty: Bucket = { all: noRules, byWord: new Map(), anyWord: noRules };

function groupOf(rules: readonly CompiledRule[]): RuleGroup {
  return { rules, scans: rules.reduce((sum, { rule }) => sum + scansOf(rule.pattern), 0) };
}

function firstWord(text: string): string {
  const end = text.indexOf(" ");
  return end === -1 ? text : text.slice(0, end);
}

/** Permissions judged by path: a rule that starts with `/` or the home directory matches the absolute path, any other the displayed one. */
const filePermissions = new Set(["read", "edit", "list", "lsp"]);
/** Permissions with patterns like paths (`DIR/*`, globs, search terms): only the text counts, with backslashes as slashes. */
const likePaths = new Set(["external_directory", "glob", "grep"]);

interface CompiledRule extends Placed {
  condition: Condition | undefined;
  isAbout(permission: string): boolean;
  meetsText(text: string): boolean;
  meetsAddress(url: string): boolean;
  meetsPath(target: Target): boolean;
}

function compile(rule: Rule, index: number, home: string): CompiledRule {
  const isAbout = matcher(rule.permission);
  return {
    index,
    rule,
    condition: rule.when ? readCondition(rule.when) : undefined,
    isAbout,
    meetsAddress: isAbout("webfetch") ? addressTest(rule.pattern, rule.action === PermissionAction.ALLOW) : () => false,
    meetsText: matcher(rule.pattern),
    meetsPath: pathTest(rule, home),
  };
}

/** Checks the condition of a rule: what is unknown goes the strict way. */
function isMet({ rule, condition }: CompiledRule, { facts }: Target): boolean {
  if (condition === undefined) return true;
  const holds = condition.holds(facts());
  return rule.action === PermissionAction.ALLOW ? holds === true : holds !== false;
}

function pathTest({ pattern, action }: Rule, home: string): (target: Target) => boolean {
  const path = expandHome(toSlashes(pattern), home);
  const absolute = path.startsWith("/");
  if (action === PermissionAction.ALLOW) {
    const meets = matcher(path);
    return absolute ? (target) => meets(target.absolute) : (target) => meets(target.text);
  }
  // On a file system that ignores case `.ENV` is `.env`: rules that ask or deny must match both.
  const meets = matcher(foldCase(path));
  return absolute ? (target) => meets(target.foldedAbsolute) : (target) => meets(target.foldedText);
}

/** Returns the compiled form of a list of rules. */
export type CompiledRules = (rules: readonly Rule[]) => RuleList;

/**
 * Creates a cache of compiled rule lists. Its key is the identity of the array: equal rules in a new array are compiled
 * again, and a change to a known array goes unnoticed. So layers hand over the same array for each decision, and never
 * change it. An array that nothing else refers to leaves the cache.
 */
export function createCompiledRules(home: string): CompiledRules {
  const lists = new WeakMap<readonly Rule[], RuleList>();
  return (rules) => {
    const list = lists.get(rules) ?? compileRules(rules, home);
    lists.set(rules, list);
    return list;
  };
}

/** Returns a function that selects the rules of a layer that concern a permission. */
export function rulesOf(compiled: CompiledRules, permission: string) {
  return ({ rules }: Pick<LayerRules, "rules">): Rule[] =>
    compiled(rules)
      .about(permission)
      .map(({ rule }) => rule);
}
