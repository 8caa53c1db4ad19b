import fc from "fast-check";
import { expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ruleCovers } from "../../src/policy/rule-cover.ts";
import { compileRules, targetOf } from "../../src/policy/rule-list.ts";
import type { Rule } from "../../src/policy/rules.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const home = "/h";
const unit = fc.constantFrom("a", "A", "b", " ", "/", "*", "?", " *", "~/");
const rule: fc.Arbitrary<Rule> = fc.record({
  permission: fc.constantFrom("bash", "read", "re*", "*", "?ash", "b*"),
  pattern: fc.string({ unit, minLength: 1, maxLength: 5 }),
  action: fc.constantFrom(ALLOW, ASK, DENY),
});
const fill = fc.array(fc.string({ unit: fc.constantFrom("a", "A", "b", " ", "/"), maxLength: 3 }), {
  minLength: 8,
  maxLength: 8,
});

/** Pairs of rules; mostly one is the other with a part of its pattern replaced, so that it often covers it. */
const pair = fc
  .tuple(
    rule,
    rule,
    fc.record({ at: fc.nat(4), length: fc.nat(3), by: fc.constantFrom("*", "?", " *", "a") }),
    fc.nat(4),
  )
  .map(([one, other, { at, length, by }, unlike]): [Rule, Rule] => {
    if (unlike === 0) return [one, other];
    const pattern = other.pattern.slice(0, at) + by + other.pattern.slice(at + length);
    return [{ ...one, permission: unlike === 1 ? one.permission : other.permission, pattern }, other];
  });

test("a rule that covers another one matches everything that one matches", () => {
  let met = 0;
  fc.assert(
    fc.property(pair, fill, fc.constantFrom("bash", "read", "red"), ([one, other], fills, permission) => {
      if (!ruleCovers(one, other, home)) return;
      // A text that the other rule probably matches: its pattern, with each star replaced.
      const shown = other.pattern
        .split("*")
        .map((piece, i) => piece + (fills[i] ?? ""))
        .join("");
      const target = targetOf(permission, shown, shown.startsWith("/") ? shown : `/w/${shown}`);
      if (compileRules([other], home).last(target) === undefined) return;
      met += 1;
      expect(compileRules([one], home).last(target)).toBeDefined();
    }),
    { numRuns: 40_000 },
  );
  expect(met).toBeGreaterThan(500);
});

test.each<[rule: [string, string], other: [string, string], boolean]>([
  [["bash", "*"], ["bash", "git *"], true],
  [["*", "*"], ["bash", "git push"], true],
  [["bash", "git *"], ["bash", "git push *"], true],
  [["bash", "git *"], ["bash", "git"], true],
  [["bash", "git push *"], ["bash", "git *"], false],
  [["bash", "a?"], ["bash", "a*"], false],
  [["bash", "a*c*"], ["bash", "abc*d"], true],
  [["bash", "*"], ["*", "*"], false],
  [["read", "src/*"], ["read", "/w/src/*"], false],
])("whether %j covers %j", ([permission, pattern], [otherPermission, otherPattern], expected) => {
  const other = { permission: otherPermission, pattern: otherPattern, action: ALLOW };
  expect(ruleCovers({ permission, pattern, action: ALLOW }, other, home)).toBe(expected);
});

test("an allow for one spelling does not cover a deny, which ignores case", () => {
  const pattern = "Secret/*";
  expect(
    ruleCovers({ permission: "read", pattern, action: ALLOW }, { permission: "read", pattern, action: DENY }, ""),
  ).toBe(false);
  expect(
    ruleCovers({ permission: "read", pattern, action: DENY }, { permission: "read", pattern, action: ALLOW }, ""),
  ).toBe(true);
});
