import { applyPatch } from "diff";
import fc from "fast-check";
import { expect, test } from "vitest";
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
