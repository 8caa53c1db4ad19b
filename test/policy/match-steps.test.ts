import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer, PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createMatchSteps, type Layers, maxMatchSteps } from "../../src/policy/model.ts";
import { allowedFiles, createPolicy } from "../../src/policy/policy.ts";
import { createConnectorFiles } from "../../src/policy/protected-files.ts";
import { createCompiledRules } from "../../src/policy/rule-list.ts";
import type { Rule } from "../../src/policy/rules.ts";
import { matcher, scansOf } from "../../src/policy/wildcard.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/data" }, home: "/home/u" });

function layersWith(rules: readonly Rule[], layer: PermissionLayer = PermissionLayer.SESSION): Layers {
  const wide = [{ layer: PermissionLayer.CONFIG, rules: [{ permission: "*", pattern: "*", action: ALLOW }] }];
  return { wide, narrow: [{ layer, rules }], steps: createMatchSteps() };
}

/** A thousand patterns of which each looks at each character often. */
const hostile = (permission: string): Rule[] =>
  Array.from({ length: 1_000 }, (_, i) => ({ permission, pattern: `*${"a?".repeat(30)}${i}*`, action: DENY }));
const usual: Rule[] = Array.from({ length: 1_000 }, (_, i) => ({
  permission: "bash",
  pattern: `tool-${i} *`,
  action: ASK,
}));

describe("a decision", () => {
  test("for which text and rules are too large asks, and counts no more steps than allowed", () => {
    const layers = layersWith(hostile("bash"));
    const line = `echo ${"a".repeat(100_000)}`;
    expect(policy.judge({ permission: "bash", patterns: [line] }, layers)).toMatchObject([
      { action: ASK, layer: PermissionLayer.ENGINE, reasonCode: PermissionReason.ALWAYS_ASKED },
    ]);
    expect(layers.steps?.used()).toBeLessThanOrEqual(maxMatchSteps);
    const files = layersWith(hostile("read"));
    const path = `/srv/${"a".repeat(200)}`;
    const patterns = Array.from({ length: 200 }, () => path);
    const decisions = policy.judge({ permission: "read", patterns, paths: patterns }, files);
    expect(decisions.map(({ action }) => action)).toContain(ALLOW);
    expect(decisions.at(-1)?.action).toBe(ASK);
    expect(files.steps?.used()).toBeLessThanOrEqual(maxMatchSteps);
  });

  test("denies what the engine protects, whatever is left of the budget", () => {
    const ask = { permission: "read", patterns: ["/data/x"], paths: ["/data/x"] };
    expect(policy.judge(ask, { ...layersWith([]), steps: createMatchSteps(0) })).toMatchObject([{ action: DENY }]);
  });

  test("by a thousand common rules takes few steps", () => {
    const layers = layersWith(usual);
    expect(policy.judge({ permission: "bash", patterns: ["tool-7 --all && git status"] }, layers)).toMatchObject([
      { action: ASK },
    ]);
    expect(layers.steps?.used()).toBeLessThan(maxMatchSteps / 1_000);
  });
});

test("tools stay listed where finding out whether all is denied takes too many steps", () => {
  const denied: Rule[] = [{ permission: "read", pattern: "*", action: DENY }];
  expect(policy.hides(layersWith(denied), "read")).toBe(true);
  const long = Array.from({ length: 1_000 }, (_, i) => ({
    permission: "read",
    pattern: `*${"b".repeat(200)}${i}*`,
    action: DENY,
  }));
  const layers = layersWith([...long, ...denied]);
  expect(policy.hides(layers, "read")).toBe(false);
  expect(layers.steps?.used()).toBeLessThanOrEqual(maxMatchSteps);
});

test("files count as restricted once rules of a session have used up their budget; rules of the operator have none", () => {
  const state = { compiled: createCompiledRules("/home/u"), connectorFiles: createConnectorFiles(() => []) };
  const allowed = (layer: PermissionLayer) => {
    const may = allowedFiles(state, layersWith(hostile("read"), layer), () => undefined).read;
    const file = { pattern: "b".repeat(200), absolute: `/srv/${"b".repeat(200)}` };
    return Array.from({ length: 200 }, () => may?.(file));
  };
  expect(new Set(allowed(PermissionLayer.SESSION))).toEqual(new Set([true, false]));
  expect(new Set(allowed(PermissionLayer.CONFIG))).toEqual(new Set([true]));
});

test("a pattern that looks at no character more than once counts as that, and one that compares only the ends as none", () => {
  expect(["a", "*", "a *", "*.env", "src/*", "*a*", "*a*b*", "*a?b*"].map(scansOf)).toEqual([0, 0, 0, 0, 0, 1, 1, 2]);
  const unit = fc.constantFrom("a", "b", " ", "*", "?");
  fc.assert(
    fc.property(
      fc.string({ unit, maxLength: 12 }),
      fc.string({ unit: fc.constantFrom("a", "b", " ") }),
      (pattern, text) => {
        let looks = 0;
        const counted = new Proxy(new String(text), {
          get(target, key) {
            if (typeof key === "string" && /^\d+$/.test(key)) looks += 1;
            const value = Reflect.get(target, key);
            return typeof value === "function" ? value.bind(target) : value;
          },
        });
        matcher(pattern)(counted as string);
        expect(looks).toBeLessThanOrEqual((scansOf(pattern) + 2) * (text.length + pattern.length));
      },
    ),
  );
});
