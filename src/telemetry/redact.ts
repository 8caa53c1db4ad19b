import type { JsonValue } from "@bufbuild/protobuf";

const maxTextLength = 200;
const maxLineLength = 2_000;
const maxEntries = 20;
const deepest = 4;
const censored = "[redacted]";

/**
 * A value for the log: what looks like a secret is taken out, and what is left is cut to what a line can hold. It is a net, not
 * a proof: a secret that looks like any other word stays.
 */
export function forLog(value: JsonValue): JsonValue {
  let left = maxLineLength;

  function shown(value: JsonValue, depth: number): JsonValue {
    if (left <= 0 || (depth > deepest && typeof value === "object")) return "…";
    if (typeof value === "string") return spend(textForLog(value));
    if (typeof value !== "object" || value === null) return spend(value);
    if (Array.isArray(value)) return value.slice(0, maxEntries).map((entry) => shown(entry, depth + 1));
    const entries = Object.entries(value).slice(0, maxEntries);
    return Object.fromEntries(
      entries.map(([key, entry]) => [
        spend(textForLog(key)),
        secretName.test(key) ? censored : shown(entry, depth + 1),
      ]),
    );
  }

  function spend<T extends string | number | boolean | null>(value: T): T {
    left -= String(value).length + 4;
    return value;
  }

  return shown(value, 0);
}

/** The beginning of a text, without what looks like a secret. */
export function textForLog(text: string): string {
  let shown = text.slice(0, 2 * maxTextLength);
  for (const [pattern, replacement] of secrets) shown = shown.replace(pattern, replacement);
  // The end of the scanned text is left out: a secret that was cut there would not be recognised.
  const seen = text.length > 2 * maxTextLength ? Math.max(0, shown.length - maxTextLength) : shown.length;
  const length = Math.min(maxTextLength, seen);
  return length === shown.length ? shown : `${shown.slice(0, length)}…`;
}

const word = "pass(?:word|wd|phrase)|secret|token|credential|authorization|cookie|(?:api|access|private)[-_]?key";
const secretName = new RegExp(word, "i");

/**
 * Patterns of secrets in text, with their replacements. They scan all that tools write, at every call: a pattern that begins with
 * a repetition would cost the square of the length.
 */
const secrets: readonly (readonly [RegExp, string])[] = [
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|$)/g, censored],
  [/((?:authorization|cookie)["']?\s*[=:]\s*["']?)[^\r\n"']+/gi, `$1${censored}`],
  [/\b(Bearer|Basic) +[\w.~+/=-]{6,}/gi, `$1 ${censored}`],
  [/:\/\/[^\s/@]{1,200}@/g, `://${censored}@`],
  // NAME=value, "name": "value", --name value
  [new RegExp(`((?:${word})[\\w-]*["']?(?:\\s*[=:]\\s*|\\s+))("[^"]*"?|'[^']*'?|[^\\s"']+)`, "gi"), `$1${censored}`],
  [/\b(?:gh[pousr]_|github_pat_|glpat-|npm_|sk-|xox[abprs]-|AKIA|ASIA)[\w-]{12,}/g, censored],
  [/\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?/g, censored],
];
