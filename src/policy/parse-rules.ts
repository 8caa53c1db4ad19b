import { ConditionError, readCondition } from "./condition.ts";
import { actions, type ConditionalAction, fromConfig, type Rule, type RuleConfig } from "./rules.ts";

const maxPatternBytes = 4_096;
const maxWildcards = 64;

/** An invalid table of rules: `path` leads to the entry, `problem` describes what is wrong with it. */
export class RuleError extends Error {
  override name = "RuleError";
  readonly path: readonly string[];
  readonly problem: string;
  constructor(path: readonly string[], problem: string, value = "") {
    const key = path.map((part, i) => (i === 0 ? part : quoteKey(part))).join(".");
    super(`${key.length > 200 ? `${key.slice(0, 200)}…` : key}${value && ` = ${value}`}: ${problem}`);
    this.path = path;
    this.problem = problem;
  }
}

/** Parses a `[permission]` table of TOML. `where` is its key; errors name the entry, its value and what is allowed. */
export function parseRules(table: unknown, where: string, home: string): Rule[] {
  checkConfig(table, [where]);
  return fromConfig(table, home);
}

/** Returns the key path of each rule of a table, in the order of `parseRules`. */
export function rulePaths(table: unknown): string[][] {
  checkConfig(table, []);
  if (typeof table === "string") return [[]];
  return Object.entries(table).flatMap(([permission, value]) =>
    typeof value === "string" ? [[permission]] : Object.keys(value).map((pattern) => [permission, pattern]),
  );
}

/** Describes what is wrong with a rule from configuration or a request; undefined if nothing. */
export function ruleProblem({ permission, pattern }: Pick<Rule, "permission" | "pattern">): string | undefined {
  if (permission === "") return "has an empty permission; name a kind, such as bash, or *";
  if (pattern === "") return "has an empty pattern; write * for every pattern";
  const bytes = Buffer.byteLength(pattern);
  if (bytes > maxPatternBytes) return `has a pattern of ${bytes} bytes; at most ${maxPatternBytes} are allowed`;
  const wildcards = pattern.split(/[*?]/).length - 1;
  if (wildcards > maxWildcards) return `has ${wildcards} wildcards in its pattern; at most ${maxWildcards} are allowed`;
  return undefined;
}

function checkConfig(table: unknown, path: readonly string[]): asserts table is RuleConfig {
  if (isAction(table)) return;
  if (!isTable(table)) throw invalid(path, table, `${anAction}, or a table of them by permission`);
  for (const [permission, value] of Object.entries(table)) {
    const here = [...path, permission];
    checkKey(here, permission);
    if (isAction(value)) {
      checkRule(here, { permission, pattern: "*" });
      continue;
    }
    if (!isTable(value)) throw invalid(here, value, `${anAction}, or a table of them by pattern`);
    if (isConditional(value))
      throw new RuleError(here, 'a condition belongs to a pattern; write "*" = { action = "…", when = "…" } below it');
    for (const [pattern, action] of Object.entries(value)) {
      const entry = [...here, pattern];
      checkKey(entry, pattern);
      checkRule(entry, { permission, pattern });
      if (isAction(action)) continue;
      if (!isConditional(action))
        throw invalid(entry, action, isTable(action) ? 'must be { action = "…", when = "…" }' : anAction);
      checkCondition(entry, action.when);
    }
  }
}

/** Refuses a condition that cannot be read. */
function checkCondition(path: readonly string[], when: string): void {
  try {
    readCondition(when);
  } catch (cause) {
    if (!(cause instanceof ConditionError)) throw cause;
    throw new RuleError([...path, "when"], `the condition ${cause.message}`, JSON.stringify(when));
  }
}

function checkRule(path: readonly string[], rule: Pick<Rule, "permission" | "pattern">): void {
  const problem = ruleProblem(rule);
  if (problem) throw new RuleError(path, problem);
}

/** Refuses keys that are whole numbers: JavaScript moves them to the front, so their place in the order is lost. */
function checkKey(path: readonly string[], key: string): void {
  if (!/^(0|[1-9]\d*)$/.test(key)) return;
  throw new RuleError(
    path,
    `a key that is a whole number does not keep its place in the order; write "${key}*" instead`,
  );
}

const anAction = 'must be "allow", "ask" or "deny"';

function isAction(value: unknown): value is keyof typeof actions {
  return typeof value === "string" && Object.hasOwn(actions, value);
}

function isConditional(value: unknown): value is ConditionalAction {
  if (!isTable(value)) return false;
  const { action, when, ...others } = value;
  return isAction(action) && typeof when === "string" && Object.keys(others).length === 0;
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date);
}

function invalid(path: readonly string[], value: unknown, expected: string): RuleError {
  return new RuleError(path, expected, typeof value === "bigint" ? String(value) : JSON.stringify(value));
}

function quoteKey(key: string): string {
  return /^[A-Za-z0-9_-]+$/.test(key) ? key : JSON.stringify(key);
}
