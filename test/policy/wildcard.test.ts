import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { foldCase, matcher, wildcard } from "../../src/policy/wildcard.ts";

/** Reference implementation as a regular expression, which may be slow. */
function byRegExp(text: string, pattern: string): boolean {
  const source = pattern
    .replace(/[.+^${}()|[\]\\]/g, "\\$&")
    .replace(/\*/g, ".*")
    .replace(/\?/g, ".")
    .replace(/ \.\*$/, "( .*)?");
  return new RegExp(`^${source}$`, "s").test(text);
}

const texts = fc.string({ unit: fc.constantFrom("a", "b", " ", "/", "\n", ".", "é"), maxLength: 14 });
const patterns = fc.string({ unit: fc.constantFrom("a", "b", " ", "/", "*", "?", " *", "."), maxLength: 8 });

describe("wildcard", () => {
  test("matches what the same pattern matches as a regular expression", () => {
    fc.assert(
      fc.property(texts, patterns, (text, pattern) => {
        expect(matcher(pattern)(text)).toBe(byRegExp(text, pattern));
      }),
      { numRuns: 20_000 },
    );
  });

  test("matches each text with itself as pattern, if it has no wildcard", () => {
    fc.assert(fc.property(texts, (text) => matcher(text)(text)));
  });

  test("a mebibyte that almost matches costs one scan per wildcard, not one per pair of characters", () => {
    const text = "a".repeat(1_048_576);
    const run = "a".repeat(2_000);
    expect(matcher(`${"a*".repeat(64)}b`)(text)).toBe(false);
    expect(matcher(`${"*?a".repeat(32)}*b*`)(text)).toBe(false);
    expect(matcher(`*${run}b${run}*`)(text)).toBe(false);
    expect(matcher(`*${run}?${run}b*`)(text)).toBe(false);
    expect(matcher(`*${run}?${run}*`)(text)).toBe(true);
  });

  test("characters of regular expressions and brackets stand for themselves", () => {
    expect(wildcard("src/(a|b)[c].ts", "src/(a|b)[c].ts")).toBe(true);
    expect(wildcard("src/a.ts", "src/[ab].ts")).toBe(false);
  });

  test("a backslash is a slash only with that option", () => {
    expect(wildcard("a\\b", "a/b")).toBe(false);
    expect(wildcard("a\\b", "a/b", { slashes: true })).toBe(true);
  });

  test("folding case keeps the length of every text", () => {
    fc.assert(fc.property(fc.string({ unit: "binary" }), (text) => foldCase(text).length === text.length));
    expect(wildcard("STRAßE.ENV", "straße.env", { ignoreCase: true })).toBe(true);
  });
});
