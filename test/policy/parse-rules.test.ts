import { parse } from "smol-toml";
import { describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { parseRules, ruleProblem } from "../../src/policy/parse-rules.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const read = (toml: string) => parseRules(parse(toml).permission, "permission", "/home/u");

describe("parseRules", () => {
  test("preserves the order of a TOML table and expands the home directory", () => {
    const toml =
      '[permission]\nedit = "ask"\n[permission.bash]\n"*" = "deny"\n"git *" = "allow"\n[permission.read]\n"~/x/*" = "allow"';
    expect(read(toml)).toEqual([
      { permission: "edit", pattern: "*", action: ASK },
      { permission: "bash", pattern: "*", action: DENY },
      { permission: "bash", pattern: "git *", action: ALLOW },
      { permission: "read", pattern: "/home/u/x/*", action: ALLOW },
    ]);
    expect(parseRules("allow", "permission", "/home/u")).toEqual([{ permission: "*", pattern: "*", action: ALLOW }]);
  });

  test.each([
    ['[permission.bash]\n"git *" = "alow"', 'permission.bash."git *" = "alow": must be "allow", "ask" or "deny"'],
    ['[permission.bash]\n"git *" = true', 'permission.bash."git *" = true: must be "allow", "ask" or "deny"'],
    ["[permission]\nbash = 1", 'permission.bash = 1: must be "allow", "ask" or "deny", or a table of them by pattern'],
    [
      'permission = ["allow"]',
      'permission = ["allow"]: must be "allow", "ask" or "deny", or a table of them by permission',
    ],
    [
      '[permission]\n"toString" = "toString"',
      'permission.toString = "toString": must be "allow", "ask" or "deny", or a table of them by pattern',
    ],
    ['[permission.bash]\n"" = "allow"', 'permission.bash."": has an empty pattern; write * for every pattern'],
    [
      '[permission.task]\n"7" = "allow"',
      'permission.task.7: a key that is a whole number does not keep its place in the order; write "7*" instead',
    ],
  ])("refuses %j", (toml, message) => {
    expect(() => read(toml)).toThrow(expect.objectContaining({ message }));
  });

  test("refuses patterns that are too long or have too many wildcards, and truncates the key", () => {
    expect(() => read(`[permission.bash]\n"${"a".repeat(4_097)}" = "ask"`)).toThrow(
      /^permission\.bash\.a{1,200}…: has a pattern of 4097 bytes; at most 4096 are allowed$/,
    );
    expect(ruleProblem({ permission: "bash", pattern: "*?".repeat(33) })).toBe(
      "has 66 wildcards in its pattern; at most 64 are allowed",
    );
    expect(ruleProblem({ permission: "bash", pattern: "*?".repeat(32) })).toBeUndefined();
  });
});
