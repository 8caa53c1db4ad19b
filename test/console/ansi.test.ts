import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createAnsiReader, linesOf, plainOf } from "../../src/console/session/ansi.ts";

const plain = (text: string) => linesOf(text).map(plainOf);
const looks = (text: string) => linesOf(text).flatMap((line) => line.map(({ text, look }) => [text, look]));

describe("output as lines", () => {
  test("colours become styles and end where the output ends them", () => {
    expect(looks("a\x1b[31;1mb\x1b[0mc")).toEqual([
      ["a", ""],
      ["b", "bold fg-1"],
      ["c", ""],
    ]);
    expect(looks("\x1b[97;44mx\x1b[39my")).toEqual([
      ["x", "fg-15 bg-4"],
      ["y", "bg-4"],
    ]);
  });

  test("256 colours and RGB map to the nearest of sixteen", () => {
    expect(looks("\x1b[38;5;9ma\x1b[38;5;196mb\x1b[38;2;0;120;0mc")).toEqual([
      ["a", "fg-9"],
      ["b", "fg-9"],
      ["c", "fg-2"],
    ]);
  });

  test("a progress bar shows its last state", () => {
    expect(plain("10%\r50%\r100%\ndone\r\n")).toEqual(["100%", "done"]);
  });

  test("sequences that move the cursor or name the window are dropped, invisible characters are shown", () => {
    expect(plain("a\x1b[2Jb\x1b]0;title\x07c\x1b[10;20Hd")).toEqual(["abcd"]);
    expect(plain("x\u202Ey\x00z\u200B")).toEqual(["x\\u{202e}y\\u{0}z\\u{200b}"]);
  });

  test("a line that is too long continues in the next one, complete", () => {
    const text = "x".repeat(5_000);
    const lines = plain(text);
    expect(lines.map(({ length }) => length)).toEqual([2_000, 2_000, 1_000]);
    expect(lines.join("")).toBe(text);
  });

  test("any division into pieces yields the same lines", () => {
    const piece = fc.constantFrom("text", "\n", "\r\n", "\r", "\x1b[31m", "\x1b[0m", "\x1b[1;42m", "\x1b]0;t\x07", "é");
    fc.assert(
      fc.property(fc.array(piece), fc.array(fc.nat(40)), (parts, cuts) => {
        const text = parts.join("");
        const places = [...new Set(cuts.map((cut) => Math.min(cut, text.length)))].toSorted((a, b) => a - b);
        const reader = createAnsiReader();
        const lines = [0, ...places].flatMap((from, i) => reader.push(text.slice(from, places[i] ?? text.length)));
        const rest = reader.rest();
        expect(merged(rest.length > 0 ? [...lines, rest] : lines)).toEqual(merged(linesOf(text)));
      }),
    );
  });
});

/** Merges neighbours of one style, so that the cuts between pieces do not matter. */
function merged(lines: ReturnType<typeof linesOf>) {
  return lines.map((line) => {
    const spans: { text: string; look: string }[] = [];
    for (const { text, look } of line) {
      const last = spans.at(-1);
      if (last?.look === look) last.text += text;
      else spans.push({ text, look });
    }
    return spans;
  });
}
