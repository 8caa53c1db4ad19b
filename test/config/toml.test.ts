import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { readToml } from "../../src/config/toml.ts";

describe("lines", () => {
  const toml = readToml(
    [
      'listen = "a" # one',
      "origins = [",
      '  "b",',
      "]",
      'text = """',
      "[permission]",
      'bash = "allow" """',
      "[permission]",
      'read = "ask"',
      'bash = { "*" = "ask", "git *" = "allow" }',
      'edit."src/*" = "allow"\r',
      "[[token]]",
      "[[token]]",
      'id = "b"',
    ].join("\n"),
    "toolgate.toml",
  );

  test.each([
    [["listen"], 1],
    [["origins", 0], 4],
    [["text"], 7],
    [["permission", "read"], 9],
    [["permission", "bash", "git *"], 10],
    [["permission", "edit", "src/*"], 11],
    [["token", 0], 12],
    [["token", 1], 13],
    [["token", 1, "id"], 14],
    [["token", 1, "roles", 3], 13],
    [["nothing"], undefined],
    [[], undefined],
  ])("of %j is %j", (path, line) => {
    expect(toml.lineOf(path)).toBe(line);
  });

  test("are found among any others", () => {
    const filler = fc.constantFrom(
      "",
      "# x",
      'KEY = """',
      "KEY = [",
      "KEY = '''",
      `KEY = 1 # ["""`,
      `KEY = "\\"]"`,
      "[KEY]",
      "[[KEY]]",
    );
    fc.assert(
      fc.property(fc.array(filler, { maxLength: 12 }), fc.array(filler, { maxLength: 12 }), (above, below) => {
        const ends = new Map([
          ['KEY = """', '\n\\"""[\n"""""'],
          ["KEY = '''", "\n#\"\n''''"],
          ["KEY = [", "\n1]"],
        ]);
        const block = (lines: string[], prefix: string) =>
          lines.map((line, i) => line.replace("KEY", `${prefix}${i}`) + (ends.get(line) ?? "")).join("\n");
        const before = block(above, "a");
        const text = `${before}\n[wanted]\nkey = 1\n${block(below, "b")}`;
        const line = before.split("\n").length + 2;
        expect(readToml(text, "x").lineOf(["wanted", "key"])).toBe(line);
      }),
      { numRuns: 200 },
    );
  });
});
