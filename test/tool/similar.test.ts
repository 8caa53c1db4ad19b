import { expect, test } from "vitest";
import { similar } from "../../src/tool/similar.ts";

test("the nearest names come first, ignoring case", () => {
  expect(similar("readme.md", ["README.MD", "readma.md", "read", "unlike-anything"], 2)).toEqual([
    "README.MD",
    "readma.md",
  ]);
});
