import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ToolFailure } from "../../src/tool/errors.ts";
import { meetsBelow, readGlob } from "../../src/tools/fs/glob-pattern.ts";

const meets = (glob: string, path: string) => readGlob(glob).some((pattern) => meetsBelow(pattern, path));

describe("a glob matches", () => {
  test.each([
    ["*.ts", ["a.ts", "x/y/a.ts", ".ts"], ["a.tsx", "a.ts/b"]],
    ["src/*.ts", ["src/a.ts"], ["src/x/a.ts", "x/src/a.ts"]],
    ["src/**/*.ts", ["src/a.ts", "src/x/y/a.ts"], ["a.ts", "srcx/a.ts"]],
    ["**/test/**", ["test/a", "x/test/y/a"], ["tests/a", "test"]],
    ["a?c", ["abc", "x/a-c"], ["ac", "abbc"]],
    ["[a-c]x[!0-9]", ["bxy"], ["dxy", "ax1"]],
    ["*.{ts,tsx}", ["a.ts", "a.tsx"], ["a.js", "a.{ts,tsx}"]],
    ["{a,b/{c,d}}/*.md", ["a/x.md", "b/c/x.md", "b/d/x.md"], ["b/x.md"]],
    ["a\\*b", ["a*b"], ["axb"]],
    ["./src/*", ["src/a"], ["a"]],
    [".//src/./x//*", ["src/x/a"], ["src/a"]],
    ["[a[b", ["[a[b"], ["a", "b"]],
    ["*a*b*c*", ["xaybzc", "abc"], ["acb"]],
    ["é?", ["é🙂"], ["e🙂"]],
  ])("%s", (glob, yes, no) => {
    for (const path of yes) expect([path, meets(glob, path)]).toEqual([path, true]);
    for (const path of no) expect([path, meets(glob, path)]).toEqual([path, false]);
  });
});

test("the base of a pattern is the path before its first wildcard, for each alternative", () => {
  expect(readGlob("{..,src}/*.pem").map(({ base }) => base)).toEqual(["..", "src"]);
  expect(readGlob("/etc/*").map(({ base }) => base)).toEqual(["/etc"]);
  expect(readGlob("/*").map(({ base }) => base)).toEqual(["/"]);
  expect(readGlob("a/{b,../..}/c*").map(({ base }) => base)).toEqual(["a/b", "a/../.."]);
});

test.each(["*/../x", "**/..", "a*/../../b", "{a,*/..}/x"])("%s could lead anywhere and is refused", (glob) => {
  expect(() => readGlob(glob)).toThrow("after a wildcard");
});

test("too many alternatives and unclosed braces are refused", () => {
  expect(() => readGlob("{a,b}".repeat(10))).toThrow(ToolFailure);
  expect(() => readGlob("{a,b")).toThrow("not closed");
});

test("a pattern that is longer than any path, or becomes long by its braces, is refused", () => {
  expect(() => readGlob("[".repeat(4_097))).toThrow("has 4097 characters, at most 4096 can be read");
  expect(() => readGlob("{a}".repeat(1_300))).toThrow("65536 characters. Use fewer braces");
  expect(readGlob("{a}".repeat(100))).toHaveLength(1);
});

test("many stars cost at most their number times the length", () => {
  const path = "a".repeat(250);
  expect(meets(`${"*a".repeat(100)}b`, path)).toBe(false);
  expect(meets(`${"**/a/".repeat(20)}b`, `${"a/".repeat(120)}c`)).toBe(false);
});

test("names without wildcards match only themselves", () => {
  const name = fc.stringMatching(/^[a-z.]{1,6}$/).filter((name) => !/^\.+$/.test(name));
  fc.assert(
    fc.property(
      fc.array(name, { minLength: 2, maxLength: 4 }),
      fc.array(name, { minLength: 2, maxLength: 4 }),
      (a, b) => {
        expect(meets(a.join("/"), b.join("/"))).toBe(a.join("/") === b.join("/"));
      },
    ),
  );
});
