import type { JsonValue } from "@bufbuild/protobuf";

const maxTextLength = 200;
const maxLineLength = 2_000;
const maxEntries = 20;
const maxDepth = 4;
const redacted = "[redacted]";

/**
 * Redacts what looks like a secret in a value and truncates the rest to the size of a log line. It cannot find every secret: one
 * that looks like an ordinary word stays.
 */
export function forLog(value: JsonValue): JsonValue {
  let remaining = maxLineLength;

  function shown(value: JsonValue, depth: number): JsonValue {
    if (remaining <= 0 || (depth > maxDepth && typeof value === "object")) return "…";
    if (typeof value === "string") return spend(textForLog(value));
    if (typeof value !== "object" || value === null) return spend(value);
    if (Array.isArray(value)) return value.slice(0, maxEntries).map((entry) => shown(entry, depth + 1));
    const entries = Object.entries(value).slice(0, maxEntries);
    return Object.fromEntries(
      entries.map(([key, entry]) => [
        spend(textForLog(key)),
        secretName.test(key) ? redacted : shown(entry, depth + 1),
      ]),
    );
  }

  function spend<T extends string | number | boolean | null>(value: T): T {
    remaining -= String(value).length + 4;
    return value;
  }

  return shown(value, 0);
}

/** Returns the beginning of a text with secrets redacted. */
export function textForLog(text: string): string {
  let shown = text.slice(0, 2 * maxTextLength);
  for (const [pattern, replacement] of secrets) shown = shown.replace(pattern, replacement);
  // The end of the examined text is not shown: a secret that begins there is incomplete and may not be recognized.
  const safe = text.length > 2 * maxTextLength ? Math.max(0, shown.length - maxTextLength) : shown.length;
  const length = Math.min(maxTextLength, safe);
  return length === shown.length ? shown : `${shown.slice(0, length)}…`;
}

const word = "pass(?:word|wd|phrase)|secret|token|credential|authorization|cookie|(?:api|access|private)[-_]?key";
const value = `"[^"]*"?|'[^']*'?|[^\\s"']+`;
const secretName = new RegExp(word, "i");

/**
 * Patterns of secrets and their replacements. They run over tool output at every call, so none may begin with a repetition:
 * matching would take quadratic time.
 */
const secrets: readonly (readonly [RegExp, string])[] = [
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|$)/g, redacted],
  [/((?:authorization|cookie)["']?\s*[=:]\s*["']?)[^\r\n"']+/gi, `$1${redacted}`],
  [/\b(Bearer|Basic) +[\w.~+/=-]{6,}/gi, `$1 ${redacted}`],
  [/:\/\/[^\s/@]{1,200}@/g, `://${redacted}@`],
  // NAME=value, "name": "value"
  [new RegExp(`((?:${word})[\\w-]*["']?\\s*[=:]\\s*)(${value})`, "gi"), `$1${redacted}`],
  // --name value
  [new RegExp(`(--?[\\w-]{0,40}(?:${word})[\\w-]*\\s+)(${value})`, "gi"), `$1${redacted}`],
  // NAME value, if the value has the form of a secret: long, with a digit. Plain words after the name stay.
  [new RegExp(`((?:${word})[\\w-]*["']?\\s+["']?)(?=[\\w.~+/=-]{0,200}\\d)[\\w.~+/=-]{12,}`, "gi"), `$1${redacted}`],
  [/\b(?:gh[pousr]_|github_pat_|glpat-|npm_|sk-|xox[abprs]-|AKIA|ASIA)[\w-]{12,}/g, redacted],
  [/\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?/g, redacted],
];
