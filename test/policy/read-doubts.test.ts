import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { defaultRules } from "../../src/policy/layers.ts";
import type { Layers } from "../../src/policy/model.ts";
import { createPolicy, strictest } from "../../src/policy/policy.ts";
import type { Rule } from "../../src/policy/rules.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/srv/work/data" }, home: "/home/me" });
const defaults = { layer: PermissionLayer.DEFAULTS, rules: defaultRules };

const parts = ["a", "B", ".env", ".ENV", "x.env.d", "keys", ".ssh", ".aws", "credentials", "data", "ſecret", "se cret"];
const path = fc.array(fc.constantFrom(...parts, "grün", "a\u202eb", `a${" ".repeat(65)}b`, "k\\eys"), {
  minLength: 1,
  maxLength: 3,
});
const name = path.map((names) => names.join("/"));
const pattern = fc
  .array(fc.constantFrom(...parts, "*", "*", "?", "/", "/srv/", "~/", " *"), { minLength: 1, maxLength: 4 })
  .map((pieces) => pieces.join(""));
const rule: fc.Arbitrary<Rule> = fc.record({
  permission: fc.constantFrom("read", "read", "*", "edit", "re*"),
  pattern: fc.oneof(pattern, fc.constant("*")),
  action: fc.constantFrom(ALLOW, ALLOW, ASK, DENY),
});
const rules = fc.array(rule, { maxLength: 4 });
const narrowLayer = fc.constantFrom(PermissionLayer.WORKSPACE, PermissionLayer.INHERITED, PermissionLayer.SESSION);
const layers: fc.Arbitrary<Layers> = fc.record({
  wide: rules.map((own) => [defaults, { layer: PermissionLayer.CONFIG, rules: own }]),
  narrow: fc.array(fc.record({ layer: narrowLayer, rules }), { maxLength: 2 }),
});
const directory = fc.constantFrom(
  { absolute: "/srv/work", pattern: "." },
  { absolute: "/srv/work/a/keys", pattern: "a/keys" },
  { absolute: "/srv/other/.ssh", pattern: "/srv/other/.ssh" },
  { absolute: "/home/me/B", pattern: "/home/me/B" },
  { absolute: "/", pattern: "/" },
);

describe("the words that identify restricted files", () => {
  test("cover every restricted file, whatever the rules", () => {
    fc.assert(
      fc.property(layers, directory, name, (layers, directory, name) => {
        const words = policy.readDoubts(directory, layers);
        const isPlain = !/[^ -~]| {64}/.test(name);
        fc.pre(words !== undefined && isPlain && !words.some((word) => name.toLowerCase().includes(word)));
        const below = (path: string) => (path === "." ? name : `${path}/${name}`);
        const ask = { permission: "read", patterns: [below(directory.pattern)], paths: [below(directory.absolute)] };
        expect(strictest(policy.judge(ask, layers))).toBe(ALLOW);
      }),
      { numRuns: 1_000 },
    );
  });

  test("are few for the built-in rules", () => {
    const words = policy.readDoubts({ absolute: "/srv/other", pattern: "." }, { wide: [defaults], narrow: [] });
    expect(words).toEqual(expect.arrayContaining([".env", ".ssh", "credentials"]));
    expect(words?.length).toBeLessThan(15);
  });

  test.each([
    ["where a rule denies everything", [{ permission: "read", pattern: "*", action: DENY }], "/srv/other"],
    ["where the directory itself is one of keys", [], "/srv/other/.ssh"],
    ["above what the engine keeps for itself", [], "/srv/work"],
    ["in the kernel's directories", [], "/proc/1"],
  ])("are unknown %s", (_, own, absolute) => {
    const wide = [defaults, { layer: PermissionLayer.CONFIG, rules: own }];
    expect(policy.readDoubts({ absolute, pattern: absolute }, { wide, narrow: [] })).toBeUndefined();
  });
});
