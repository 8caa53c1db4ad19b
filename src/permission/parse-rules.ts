import { actions, fromConfig, type Rule, type RuleConfig } from "./rules.ts";

const maxPatternBytes = 4_096;
const maxWildcards = 64;

/** Reads a `[permission]` table as TOML gave it. `where` is its key; errors name the entry, its value and what is allowed. */
export function parseRules(table: unknown, where: string, home: string): Rule[] {
  checkConfig(table, where);
  return fromConfig(table, home);
}

/** What is wrong with a rule that somebody wrote, if anything: for rules that come in requests, too. */
export function ruleProblem({ permission, pattern }: Pick<Rule, "permission" | "pattern">): string | undefined {
  if (permission === "") return "has an empty permission; name a kind, such as bash, or *";
  if (pattern === "") return "has an empty pattern; write * for every pattern";
  const bytes = Buffer.byteLength(pattern);
  if (bytes > maxPatternBytes) return `has a pattern of ${bytes} bytes; at most ${maxPatternBytes} are allowed`;
  const wildcards = pattern.split(/[*?]/).length - 1;
  if (wildcards > maxWildcards) return `has ${wildcards} wildcards in its pattern; at most ${maxWildcards} are allowed`;
  return undefined;
}

function checkConfig(table: unknown, where: string): asserts table is RuleConfig {
  if (isAction(table)) return;
  if (!isTable(table)) throw invalid(where, table, `${anAction}, or a table of them by permission`);
  for (const [permission, value] of Object.entries(table)) {
    const key = `${where}.${quoteKey(permission)}`;
    checkKey(permission, key);
    if (isAction(value)) {
      checkRule({ permission, pattern: "*" }, key);
      continue;
    }
    if (!isTable(value)) throw invalid(key, value, `${anAction}, or a table of them by pattern`);
    for (const [pattern, action] of Object.entries(value)) checkEntry(permission, pattern, action, key);
  }
}

function checkEntry(permission: string, pattern: string, action: unknown, where: string): void {
  const key = `${where}.${quoteKey(pattern)}`;
  checkKey(pattern, key);
  checkRule({ permission, pattern }, key);
  if (!isAction(action)) throw invalid(key, action, anAction);
}

function checkRule(rule: Pick<Rule, "permission" | "pattern">, key: string): void {
  const problem = ruleProblem(rule);
  if (problem) throw new Error(`${key.length > 200 ? `${key.slice(0, 200)}…` : key}: ${problem}`);
}

/** JavaScript moves keys that are whole numbers to the front, so their place in the order is already lost. */
function checkKey(key: string, where: string): void {
  if (!/^(0|[1-9]\d*)$/.test(key)) return;
  throw new Error(
    `${where}: a key that is a whole number does not keep its place in the order; write "${key}*" instead`,
  );
}

const anAction = 'must be "allow", "ask" or "deny"';

function isAction(value: unknown): value is keyof typeof actions {
  return typeof value === "string" && Object.hasOwn(actions, value);
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date);
}

function invalid(key: string, value: unknown, expected: string): Error {
  return new Error(`${key} = ${typeof value === "bigint" ? value : JSON.stringify(value)}: ${expected}`);
}

function quoteKey(key: string): string {
  return /^[A-Za-z0-9_-]+$/.test(key) ? key : JSON.stringify(key);
}
