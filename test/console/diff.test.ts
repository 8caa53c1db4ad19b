import fc from "fast-check";
import { expect, test } from "vitest";
import { countChanges, parseDiff } from "../../src/console/parts/diff.ts";
import { compare } from "../../src/tools/fs/diff.ts";

test("lines have the numbers of the old and the new file", () => {
  const diff = "--- a.ts\n+++ a.ts\n@@ -3,3 +3,3 @@\n same\n-old\n+new\n end\n";
  expect(parseDiff(diff)).toEqual([
    { kind: "file", text: "--- a.ts" },
    { kind: "file", text: "+++ a.ts" },
    { kind: "hunk", text: "@@ -3,3 +3,3 @@" },
    { kind: "same", text: "same", before: 3, after: 3 },
    { kind: "removed", text: "old", before: 4 },
    { kind: "added", text: "new", after: 4 },
    { kind: "same", text: "end", before: 5, after: 5 },
  ]);
});

test("a changed line that looks like a diff header is still a changed line", () => {
  const diff = "--- a\n+++ a\n@@ -1,2 +1,2 @@\n--- sql comment\n+++ x\n same\n";
  expect(parseDiff(diff).map(({ kind }) => kind)).toEqual(["file", "file", "hunk", "removed", "added", "same"]);
});

test("in diffs of the built-in tools every line is counted, and the new file can be reconstructed", () => {
  const text = fc
    .array(fc.constantFrom("a", "-b", "+c", "@@ -1 +1 @@", "--- d", ""))
    .map((lines) => lines.map((line) => `${line}\n`).join(""));
  fc.assert(
    fc.property(text, text, (before, after) => {
      const { diff, additions, deletions } = compare("file", { text: before }, after);
      const lines = parseDiff(diff);
      expect(countChanges(lines)).toEqual({ added: additions, removed: deletions });
      const known = after.split("\n");
      for (const { after: number, text } of lines) if (number !== undefined) expect(text).toBe(known[number - 1]);
    }),
  );
});
