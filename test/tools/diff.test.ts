import { applyPatch } from "diff";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compare } from "../../src/tools/fs/diff.ts";

const lines = fc.array(fc.constantFrom("a", "b", "c", "", "  d"), { maxLength: 30 });
const text = fc.tuple(lines, fc.constantFrom("\n", "")).map(([lines, end]) => lines.join("\n") + end);

test("a diff applied to the old version gives the new one", () => {
  fc.assert(
    fc.property(text, text, (before, after) => {
      const { diff } = compare("f", { text: before }, after);
      if (before === after) expect(diff).toBe("");
      else expect(applyPatch(before, diff)).toBe(after);
    }),
    { numRuns: 500 },
  );
});

test("of a large file only the changed part is compared, with its line numbers", () => {
  const before = Array.from({ length: 300_000 }, (_, i) => `line ${i + 1}\n`).join("");
  const { diff, additions, deletions } = compare("f", { text: before }, before.replace("line 200000\n", "new\n"));
  expect(diff).toContain(
    "@@ -199996,9 +199996,9 @@\n line 199996\n line 199997\n line 199998\n line 199999\n-line 200000\n+new\n",
  );
  expect([additions, deletions]).toEqual([1, 1]);
});

describe("a change of any size is shown whole, with the counts of its lines:", () => {
  const numbered = (count: number, name: (i: number) => string) =>
    Array.from({ length: count }, (_, i) => `${name(i)}\n`).join("");
  /** A fixed sequence without a pattern. */
  const mixed = (i: number) => (Math.imul(i ^ (i >>> 7), 2_654_435_761) >>> 0) % 50;
  const table: [name: string, before: string, after: string, added?: number, removed?: number][] = [
    ["every line", numbered(5_000, (i) => `old ${i}`), numbered(5_000, (i) => `new ${i}`), 5_000, 5_000],
    [
      "every second line",
      numbered(5_000, (i) => `line ${i}`),
      numbered(5_000, (i) => (i % 2 === 0 ? `line ${i}` : `new ${i}`)),
      2_500,
      2_500,
    ],
    ["the order of lines", numbered(4_000, (i) => `${i}`), numbered(4_000, (i) => `${3_999 - i}`), 3_999, 3_999],
    ["lines that all repeat", numbered(6_000, (i) => `${mixed(i)}`), numbered(6_000, (i) => `${mixed(i + 3_000)}`)],
    ["a moved block", numbered(9_000, (i) => `${i}`), numbered(9_000, (i) => `${(i + 4_000) % 9_000}`), 4_000, 4_000],
    ["300,000 short lines", numbered(300_000, (i) => `${i % 7}`), "new", 1, 300_000],
    ["one line of 6 MB", "x".repeat(6_000_000), "y".repeat(6_000_000), 1, 1],
    ["an empty file into 100,000 lines", "", numbered(100_000, (i) => `${i}`), 100_000, 0],
    ["a text without a line end", `${numbered(3_000, (i) => `a${i}`)}end`, `${numbered(3_000, (i) => `b${i}`)}end`],
  ];
  for (const [name, before, after, added, removed] of table) {
    test(name, () => {
      const { diff, additions, deletions } = compare("f", { text: before }, after);
      // Not by `expect`, which would print a difference of megabytes.
      expect(applyPatch(before, diff) === after).toBe(true);
      const shown = diff.split("\n").slice(2);
      expect([additions, deletions]).toEqual([
        shown.filter((line) => line.startsWith("+")).length,
        shown.filter((line) => line.startsWith("-")).length,
      ]);
      if (added !== undefined) expect([additions, deletions]).toEqual([added, removed]);
    });
  }

  test("large texts of repeated and unique lines", () => {
    const line = fc.oneof(fc.nat({ max: 5 }).map(String), fc.nat().map(String));
    const large = fc.array(line, { minLength: 1_500, maxLength: 2_500, size: "max" }).map((all) => all.join("\n"));
    fc.assert(
      fc.property(large, large, (before, after) => {
        const { diff } = compare("f", { text: before }, after);
        expect(before === after || applyPatch(before, diff) === after).toBe(true);
      }),
      { numRuns: 20 },
    );
  });
});
