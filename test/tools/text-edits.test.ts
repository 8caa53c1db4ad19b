import fc from "fast-check";
import { expect, test } from "vitest";
import type { TextEdit } from "vscode-languageserver-protocol";
import { applyTextEdits } from "../../src/tools/lsp/edit-call.ts";

/** Line ends of all kinds, and characters of one and two UTF-16 code units. */
const text = fc
  .array(fc.constantFrom("a", "bc", "\u{1f600}", "é", "\n", "\r\n", "\r", "\t"), { maxLength: 30 })
  .map((parts) => parts.join(""));

/** Returns the position of an offset; the slow and obvious way. */
function positionOf(whole: string, offset: number) {
  const lines = whole.slice(0, offset).split(/\r\n|\n|\r/);
  return { line: lines.length - 1, character: lines.at(-1)?.length ?? 0 };
}

/** Offsets between which an edit may lie: not inside of a line end. */
const isPlace = (whole: string, offset: number) => !(whole[offset - 1] === "\r" && whole[offset] === "\n");

test("edits that do not overlap, in any order, give the text in which each range is replaced", () => {
  const cut = fc.tuple(fc.nat(40), fc.constantFrom("", "x", "new\n", "\u{1f600}"));
  fc.assert(
    fc.property(text, fc.array(cut, { maxLength: 8 }), fc.nat(), (whole, cuts, turn) => {
      const offsets = cuts
        .map(([at]) => at % (whole.length + 1))
        .filter((offset) => isPlace(whole, offset))
        .toSorted((one, other) => one - other);
      const edits: TextEdit[] = [];
      let expected = "";
      let done = 0;
      for (let i = 0; i + 1 < offsets.length; i += 2) {
        const [start = 0, end = 0] = [offsets[i], offsets[i + 1]];
        const newText = cuts[i]?.[1] ?? "";
        // Two insertions at one place have an order, so the edits are not free to turn.
        if (edits.length > 0 && start <= done) continue;
        expected += whole.slice(done, start) + newText;
        done = end;
        edits.push({ range: { start: positionOf(whole, start), end: positionOf(whole, end) }, newText });
      }
      const turned = edits
        .map((_, i) => edits[(i + turn) % edits.length] ?? edits[0])
        .filter((one) => one !== undefined);
      expect(applyTextEdits("a.ts", whole, turned)).toBe(expected + whole.slice(done));
    }),
  );
});

const edit = (start: number, end: number, newText: string, line = 0) => ({
  ...{ range: { start: { line, character: start }, end: { line, character: end } }, newText },
});

test("insertions at one place keep their order, and a column behind the end of a line is its end", () => {
  expect(applyTextEdits("a.ts", "ab\ncd", [edit(1, 1, "1"), edit(1, 1, "2"), edit(9, 9, "3")])).toBe("a12b3\ncd");
  expect(applyTextEdits("a.ts", "ab\n", [edit(0, 0, "end", 1), edit(0, 0, "", 2)])).toBe("ab\nend");
});

test("edits that overlap, or that lie outside of the text, are refused", () => {
  expect(() => applyTextEdits("a.ts", "abcd", [edit(0, 3, "x"), edit(2, 4, "y")])).toThrow("its edits overlap");
  expect(() => applyTextEdits("a.ts", "abcd", [edit(3, 1, "x")])).toThrow("its edits overlap");
  expect(() => applyTextEdits("a.ts", "abcd", [edit(0, 1, "x", 2)])).toThrow("it has no line 3");
  expect(() => applyTextEdits("a.ts", "abcd", [edit(0, 1, "x", -1)])).toThrow("it has no line 0");
});
